package config

import (
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/hosttools"
)

func (p *problems) checkHTTPURL(path, text string) {
	u, err := url.Parse(text)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		p.addf(path, "%q is not a URL such as http://localhost:4317", ShownURL(text))
	}
}

func (s Server) check(p *problems, path, name string) {
	if !serverName.MatchString(name) {
		p.addf(path, "%q is not a name of 1 to 32 lower-case letters, digits or -", name)
	}
	if s.host != "" {
		return
	}
	if strings.HasPrefix(name, hosttools.Prefix) {
		p.addf(path, "names that begin with %s are reserved for the clients under hooks: choose another name", hosttools.Prefix)
	}
	kinds := 0
	if s.HTTP != nil {
		kinds++
		if p.refuseReference(path+".http.url", s.HTTP.URL, `: put the value into headers, such as Authorization: "Bearer REF"`) {
			p.checkHTTPURL(path+".http.url", s.HTTP.URL)
		}
		p.checkHeaders(path+".http.headers", s.HTTP.Headers)
		s.HTTP.checkTransport(p, path+".http")
	}
	if s.Stdio != nil {
		kinds++
		s.Stdio.check(p, path+".stdio")
	}
	if s.GRPC != nil {
		kinds++
		s.GRPC.check(p, path+".grpc")
	}
	if kinds != 1 {
		p.addf(path, "set exactly one of http, stdio and grpc")
	}
	if s.Credentials != nil {
		s.Credentials.check(p, path+".credentials", &s)
	}
	if s.Unwrap != "" && s.Unwrap != "claude-flow" {
		p.addf(path+".unwrap", "%q is not one of claude-flow", s.Unwrap)
	}
	if !slices.Contains([]string{"first_use", "review", "off"}, s.PinMode()) {
		p.addf(path+".pin", "%q is not one of first_use, review, off", s.Pin)
	}
	p.checkBetween(path+".timeout", s.Timeout, time.Millisecond, 24*time.Hour)
	if s.Record.Arguments != "" && s.Record.Arguments != "redacted" {
		p.addf(path+".record.arguments", "%q is unknown: write redacted, or remove the key", s.Record.Arguments)
	}
	p.checkBetween(path+".max_timeout", s.MaxTimeout, s.Timeout, 24*time.Hour)
}

func (s GRPCServer) check(p *problems, path string) {
	if IsAgentService(s.Target) {
		if s.CA != "" || s.Plaintext || len(s.Headers) > 0 {
			p.addf(path, "is the mesh's own service: remove all keys except target")
		}
		return
	}
	if !p.refuseReference(path+".target", s.Target, ": write the address itself") {
		return
	}
	if host, port, err := net.SplitHostPort(s.Target); err != nil || host == "" || port == "" {
		p.addf(path+".target", "%q is neither wasmagent nor an address such as tools.example.com:443", s.Target)
	}
	if s.Plaintext && s.CA != "" {
		p.addf(path, "set plaintext, or the certificates to trust, not both")
	}
	for key := range s.Headers {
		if !metadataKey.MatchString(key) || strings.HasPrefix(key, "grpc-") {
			p.addf(path+".headers", "%q is not the name of metadata: lower-case letters, digits, - _ and ., and not grpc-", key)
		}
	}
}

var metadataKey = regexp.MustCompile(`^[0-9a-z_.-]{1,128}$`)

func (s StdioServer) check(p *problems, path string) {
	if len(s.Command) == 0 || s.Command[0] == "" {
		p.addf(path+".command", "is empty: give the program and its arguments as a list")
	}
	if s.Per != "principal" && s.Per != "shared" {
		p.addf(path+".per", "%q is not one of principal, shared", s.Per)
	}
	if s.Recycle < 0 || s.Recycle > 1_000_000 {
		p.addf(path+".recycle", "%d is not between 0 and 1000000", s.Recycle)
	}
	if s.Processes < 1 || s.Processes > 10_000 {
		p.addf(path+".processes", "%d is not between 1 and 10000", s.Processes)
	}
	if len(s.Remove) > 0 && s.Dir != "private" {
		p.addf(path+".remove", "is only for a private folder: remove it, or remove dir")
	}
	for i, name := range s.Remove {
		if !filepath.IsLocal(name) || filepath.Clean(name) != name || name == "." {
			p.addf(fmt.Sprintf("%s.remove[%d]", path, i), "%q is not a path inside of the folder such as state/lock", name)
		}
	}
	switch {
	case s.Install != "once" && s.Install != "each_start":
		p.addf(path+".install", "%q is not one of once, each_start", s.Install)
	case s.Install == "each_start" && len(s.Command) > 0 && !slices.Contains([]string{"npx", "npm"}, filepath.Base(s.Command[0])):
		p.addf(path+".install", "has no effect, because it is for the commands npx and npm exec: remove it")
	}
	if s.Start != 0 {
		p.checkBetween(path+".start", s.Start, time.Second, 30*time.Minute)
	}
	for key := range s.Env {
		if key == "" || strings.ContainsAny(key, "=\x00") {
			p.addf(path+".env", "%q is not the name of a variable", key)
		}
	}
	s.Limits.check(p, path+".limits")
	s.refuseReferences(p, path)
	s.Sandbox.check(p, path+".sandbox")
	if len(s.Sandbox.Home) > 0 && s.Dir != "private" {
		p.addf(path+".sandbox.home", "is only for a private folder, and with dir the program has HOME of the gateway's user: remove home or dir")
	}
}

func (s StdioSandbox) check(p *problems, path string) {
	if !slices.Contains([]string{"auto", "required", "off"}, s.Mode) {
		p.addf(path+".mode", "%q is not one of auto, required, off", s.Mode)
	}
	if s.Mode == "off" && (len(s.Read) > 0 || len(s.Write) > 0 || len(s.Home) > 0 || s.Network != nil && !*s.Network) {
		p.addf(path, "is off, so the other keys have no effect: remove them, or choose another mode")
	}
	s.checkHome(p, path+".home")
	for key, paths := range map[string][]string{".read": s.Read, ".write": s.Write} {
		for i, name := range paths {
			if name == "" || strings.Contains(name, "\x00") {
				p.addf(fmt.Sprintf("%s%s[%d]", path, key, i), "%q is not a path", name)
			}
		}
	}
}

// checkHome refuses entries that are not inside HOME, and entries that are inside another entry.
func (s StdioSandbox) checkHome(p *problems, path string) {
	for i, name := range s.Home {
		at := fmt.Sprintf("%s[%d]", path, i)
		if !filepath.IsLocal(name) || filepath.Clean(name) != name || name == "." || !isPlain(name) {
			p.addf(at, "%q is not a path inside of HOME such as .kube or .config/gh", name)
		}
		for k, other := range s.Home {
			if i != k && (name == other || strings.HasPrefix(name, other+"/")) {
				p.addf(at, "%q is or lies in %q, which is listed too: remove it", name, other)
			}
		}
	}
}
