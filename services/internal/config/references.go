package config

import (
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// unresolvedReference matches a reference in a value that is used verbatim. It does not match shell expressions such as
// `${name}` and `${env:-default}`.
var unresolvedReference = regexp.MustCompile(`\$\{(?:cmd|env|file|keychain|plain|vault):[A-Za-z_./~][^}]*\}`)

// refuseReference reports a problem if a value that is used verbatim contains a reference. It returns true if the value
// contains no reference. advice describes what to write instead. REF in advice is replaced with the reference.
func (p *problems) refuseReference(path, text, advice string) bool {
	ref := unresolvedReference.FindString(text)
	if ref != "" {
		p.addf(path, "%s is not resolved here%s", ref, strings.ReplaceAll(advice, "REF", ref))
	}
	return ref == ""
}

// gatewayHeaders lists headers that the gateway writes itself, and headers that belong to a connection (RFC 9110,
// section 7.6.1).
var gatewayHeaders = []string{
	"accept", "connection", "content-length", "content-type", "expect", "host", "keep-alive", "last-event-id", "mcp-method", "mcp-name", "mcp-protocol-version", "mcp-session-id",
	"proxy-connection", "te", "traceparent", "trailer", "transfer-encoding", "upgrade",
}

// misleadingHeaders contains headers that would make requests or responses unusable, each with the reason.
var misleadingHeaders = map[string]string{
	"accept-encoding":     "would make the server compress its answers, but the gateway does not accept compressed answers; remove it",
	"content-encoding":    "would declare requests as compressed, but the gateway does not compress them; remove it",
	"proxy-authorization": "is for a proxy, and would be sent to the server; write the credentials into the address of http.proxy",
}

// checkHeaders refuses headers that would not be sent, and duplicate names.
func (p *problems) checkHeaders(path string, headers map[string]Secret) {
	seen := make(map[string]bool)
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		lower := strings.ToLower(name)
		switch {
		case lower == "host":
			p.addf(path, "%q has no effect, because the gateway writes it itself; write the host in url", name)
		case misleadingHeaders[lower] != "":
			p.addf(path, "%q %s", name, misleadingHeaders[lower])
		case slices.Contains(gatewayHeaders, lower), strings.HasPrefix(lower, "mcp-param-"):
			p.addf(path, "%q has no effect, because the gateway writes it itself; remove it", name)
		case seen[lower]:
			p.addf(path, "%q is listed twice, in different case; keep one", name)
		}
		seen[lower] = true
	}
}

// checkTransport refuses a proxy and CA certificates that no request would use.
func (s *HTTPServer) checkTransport(p *problems, path string) {
	p.refuseReference(path+".ca", s.CA, ": write the path of the file")
	u, err := url.Parse(s.URL)
	if err != nil || u.Scheme != "http" {
		s.checkProxy(p, path)
		return
	}
	if s.Proxy != "" {
		p.addf(path+".proxy", "has no effect, because a proxy is used only for https, with CONNECT: write an https address into url, or remove it")
	}
	if s.CA != "" {
		p.addf(path+".ca", "has no effect, because the server does not use TLS: write an https address into url, or remove it")
	}
}

// checkProxy refuses a value that is not the address of a proxy. It accepts a value with references, because they are
// resolved later. The message contains no credentials.
func (s *HTTPServer) checkProxy(p *problems, path string) {
	if s.Proxy == "" || s.Proxy == ProxyEnv || len(referencePattern.FindString(string(s.Proxy))) > 0 {
		return
	}
	u, err := url.Parse(string(s.Proxy))
	if err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		p.addf(path+".proxy", "is neither env nor the address of a proxy such as http://proxy.example.com:3128")
	}
}

// refuseReferences refuses references in a program's arguments, directory and sandbox. Only its environment may contain
// references.
func (s *StdioServer) refuseReferences(p *problems, path string) {
	for i, arg := range s.Command {
		p.refuseReference(fmt.Sprintf("%s.command[%d]", path, i), arg, ", and other users can see arguments: put the value into env, from which the program can read it")
	}
	p.refuseReference(path+".dir", s.Dir, ": write the path of the folder")
	for key, paths := range map[string][]string{"read": s.Sandbox.Read, "write": s.Sandbox.Write, "home": s.Sandbox.Home} {
		for i, name := range paths {
			p.refuseReference(fmt.Sprintf("%s.sandbox.%s[%d]", path, key, i), name, ": write the path itself")
		}
	}
}
