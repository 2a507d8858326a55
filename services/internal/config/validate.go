package config

import (
	"crypto/ed25519"
	"encoding/hex"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/principal"
)

const maxHold = 10 * time.Minute

// maxClientName is the maximum length of a pattern for client names, in bytes. The gateway ignores longer client names.
const maxClientName = 128

// maxDuration is the maximum of all durations that have no specific maximum.
const maxDuration = 30 * 24 * time.Hour

// serverName matches a server's name. The name may not contain underscores, because an aggregated tool name is split at
// its first `__`.
var serverName = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)

// tokenName and tenantName match the names that the message sluice.identity.v1.Token allows.
var (
	tokenName  = regexp.MustCompile(`^[A-Za-z0-9_.@-]{1,128}$`)
	tenantName = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)
)

var (
	guestName  = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,63}$`)
	digestText = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// shippedGuests contains names that a configured WebAssembly module (guest) can't have: the names of built-in guests,
// and a reserved name.
var shippedGuests = []string{"agent", "echo", "script"}

var hostName = regexp.MustCompile(`^[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?$`)

// A Problem is one problem in a configuration.
type Problem struct { //nolint:errname // an item of a list of errors
	// Path is the path of the key, for example "servers.demo.http.url".
	Path string
	// Text describes the problem and how to solve it.
	Text string
}

// Error implements error.
func (p Problem) Error() string { return p.Path + ": " + p.Text }

// problems collects all problems, so that they are reported together.
type problems struct{ found []Problem }

func (p *problems) addf(path, format string, args ...any) {
	p.found = append(p.found, Problem{Path: path, Text: fmt.Sprintf(format, args...)})
}

func (g Guest) check(p *problems, path, name string) {
	switch {
	case !guestName.MatchString(name):
		p.addf(path, "%q is not a name of 1 to 64 lower-case letters, digits or -", name)
	case slices.Contains(shippedGuests, name):
		p.addf(path, "a built-in guest has this name: choose another name")
	}
	if g.Module == "" {
		p.addf(path+".module", "is missing: name the module's file")
	}
	if !digestText.MatchString(g.SHA256) {
		p.addf(path+".sha256", "is not a hash of the module: write the 64 digits that `sha256sum` prints")
	}
}

// problems checks the configuration and returns all problems.
func (f *File) problems() []Problem {
	p := new(problems)
	p.checkAddress("listen", f.Listen)
	f.checkListen(p)
	p.checkAddress("grpc", f.GRPC)
	if f.Data == "" {
		p.addf("data", "is empty: name a folder")
	}
	f.checkAuth(p)
	f.checkIssuers(p)
	f.checkGroups(p)
	f.checkRoles(p)
	f.Secrets.check(p)
	f.checkNumbers(p)
	for _, name := range slices.Sorted(maps.Keys(f.Servers)) {
		f.Servers[name].check(p, "servers."+name, name)
	}
	own := ""
	for _, name := range slices.Sorted(maps.Keys(f.Servers)) {
		if g := f.Servers[name].GRPC; g == nil || !IsAgentService(g.Target) {
			continue
		}
		if own != "" { // otherwise calls to one server could avoid a rule for the other
			p.addf("servers."+name+".grpc.target", "%q is the mesh's own service of agents, which is the server %q already", f.Servers[name].GRPC.Target, own)
		}
		own = name
	}
	f.checkHooks(p)
	f.checkAgents(p)
	for i, host := range f.Hosts {
		if _, err := netip.ParseAddr(host); err != nil && !hostName.MatchString(host) {
			p.addf(fmt.Sprintf("hosts[%d]", i), "%q is not a name such as mcp.example.com: lower case, without a port", host)
		}
	}
	for i, origin := range f.Origins {
		if u, err := url.Parse(origin); err != nil || u.Scheme == "" || u.Host == "" || u.Path != "" {
			p.addf(fmt.Sprintf("origins[%d]", i), "%q is not an origin such as https://app.example.com", origin)
		}
	}
	f.checkObservations(p)
	if i := slices.Index(f.Policies, inStore); i >= 0 && len(f.Policies) > 1 {
		p.addf(fmt.Sprintf("policies[%d]", i), `"store" must be the only entry, because policies come either from files or from the store; write ./store for a folder of this name`)
	}
	p.checkBetween("stores.policy_max_age", f.Stores.PolicyMaxAge, 5*time.Second, time.Hour)
	p.checkBetween("stores.identity_max_age", f.Stores.IdentityMaxAge, 5*time.Second, time.Hour)
	return p.found
}

func (f *File) checkAgents(p *problems) {
	for _, name := range slices.Sorted(maps.Keys(f.Agents.Guests)) {
		f.Agents.Guests[name].check(p, "agents.guests."+name, name)
	}
	for _, name := range slices.Sorted(maps.Keys(f.Agents.Providers)) {
		f.Agents.Providers[name].check(p, "agents.providers."+name, name)
	}
	if day := f.Agents.PersonDay; day.Cost != "" && !price.MatchString(day.Cost) {
		p.addf("agents.person_day.cost", "%q is not an amount of US dollars such as \"10.50\"", day.Cost)
	} else if day.Tokens < 0 {
		p.addf("agents.person_day.tokens", "%d is less than 0, which means 10000000", day.Tokens)
	}
	for i, key := range f.Agents.AcceptKeys {
		if text, err := hex.DecodeString(key); err != nil || len(text) != ed25519.PublicKeySize {
			p.addf(fmt.Sprintf("agents.accept_keys[%d]", i), "is not an Ed25519 public key of 64 hexadecimal digits, as `sluice agents export` prints it")
		}
	}
}

// providerName matches the name of a model provider. price matches an amount in dollars.
var (
	providerName = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)
	price        = regexp.MustCompile(`^[0-9]{1,6}([.][0-9]{1,9})?$`)
)

// check refuses a provider that can't be called, or that could only be called without encryption.
func (m Provider) check(p *problems, at, name string) {
	if !providerName.MatchString(name) || name == "script" {
		p.addf(at, "%q is not a name of a provider: write 1 to 32 lower-case letters, digits or -; script is built in", name)
	}
	if m.Kind != "openai" && m.Kind != "anthropic" {
		p.addf(at+".kind", "%q is neither openai, which is for every provider with the chat completions API of OpenAI, nor anthropic", m.Kind)
	}
	if m.MaxTokens < 0 || m.MaxTokens > 200_000 {
		p.addf(at+".max_tokens", "%d is not between 0, which means 8192, and 200000", m.MaxTokens)
	}
	if m.Tries < 0 || m.Tries > 20 {
		p.addf(at+".tries", "%d is not between 0, which means 5, and 20", m.Tries)
	}
	if m.Backoff < 0 || m.Backoff > time.Minute {
		p.addf(at+".backoff", "%s is not between 0s, which means 1s, and 1m", m.Backoff)
	}
	if m.URL != "" {
		u, err := url.Parse(m.URL)
		if err != nil || u.Host == "" || u.Scheme != "https" && (u.Scheme != "http" || !loopback(u.Hostname())) {
			p.addf(at+".url", "%q is not an https URL; http is allowed on this machine only, because the key could be read on the network", m.URL)
		}
	}
	for _, model := range slices.Sorted(maps.Keys(m.Prices)) {
		cost := m.Prices[model]
		if !price.MatchString(cost.Input) || !price.MatchString(cost.Output) {
			p.addf(at+".prices."+model, "input and output are amounts of US dollars for a million tokens, such as \"1.25\"")
		}
	}
}

// checkListen refuses to serve MCP without TLS on an address other than loopback, because others could read tokens on
// the network.
func (f *File) checkListen(p *problems) {
	if (f.ListenTLS.Cert == "") != (f.ListenTLS.Key == "") {
		p.addf("listen_tls", "set both cert and key, or neither")
	}
	for i, text := range f.BehindProxy {
		switch network, err := ParseNetwork(text); {
		case err != nil:
			p.addf(fmt.Sprintf("behind_proxy[%d]", i), "%q is not an address such as 10.0.0.7, or a network such as 10.0.0.0/8", text)
		case network.Bits() == 0:
			p.addf(fmt.Sprintf("behind_proxy[%d]", i), "%q is every address: list only the proxies", text)
		}
	}
	if host, _, err := net.SplitHostPort(f.Listen); err == nil && f.ListenTLS.Cert == "" && len(f.BehindProxy) == 0 && !loopback(host) {
		p.addf("listen", "%s: MCP without TLS is served only on loopback: set listen_tls, list the proxies that speak TLS for it under behind_proxy, or listen on 127.0.0.1", f.Listen)
	}
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// ParseNetwork parses an address, or a network such as 10.0.0.0/8.
func ParseNetwork(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil && addr.Zone() == "" {
		return netip.PrefixFrom(addr.Unmap(), addr.Unmap().BitLen()), nil
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, err
	}
	if prefix.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("%s: write an IPv4 network in its IPv4 form, such as 10.0.0.0/8", text)
	}
	if prefix != prefix.Masked() {
		return netip.Prefix{}, fmt.Errorf("%s: is it %s, or %s?", text, prefix.Addr(), prefix.Masked())
	}
	return prefix, nil
}

func (p *problems) checkAddress(path, addr string) {
	if _, _, err := net.SplitHostPort(addr); err != nil {
		p.addf(path, "%q is not an address such as 127.0.0.1:8080", addr)
	}
}

func (p *problems) checkBetween(path string, d, least, most time.Duration) {
	if d < least || d > most {
		p.addf(path, "%v is not between %v and %v", d, least, most)
	}
}

// checkHold checks how long a call that needs an approval is held open. If the time is 0, the client immediately
// receives a result with a ticket for the pending approval.
func (p *problems) checkHold(path string, d time.Duration) {
	if d != 0 {
		p.checkBetween(path, d, time.Second, maxHold)
	}
}

func (f *File) checkAuth(p *problems) {
	seen := make(map[string]bool)
	for i, t := range f.Auth.Tokens {
		path := fmt.Sprintf("auth.tokens[%d]", i)
		if !tokenName.MatchString(t.Name) {
			p.addf(path+".name", "%q is not a name of 1 to 128 letters, digits, or _ . @ -", t.Name)
		}
		if seen[t.Name] {
			p.addf(path+".name", "%q is the name of two tokens", t.Name)
		}
		seen[t.Name] = true
		if (t.Token == "") == (t.SHA256 == "") {
			p.addf(path, "set exactly one of token and sha256")
		}
		if !tenantName.MatchString(t.Tenant) {
			p.addf(path+".tenant", "%q is not a name of 1 to 64 lower-case letters, digits or -", t.Tenant)
		}
		if !slices.Contains([]string{"agent", "operator", "approver", "viewer"}, t.Role) {
			p.addf(path+".role", "%q is not one of agent, operator, approver, viewer", t.Role)
		}
		t.check(p, path)
	}
}

// check checks a token against the constraints of the message sluice.identity.v1.Principal. If the token's principal
// violated them, every call of the principal would be refused.
func (t Token) check(p *problems, path string) {
	for _, field := range []struct {
		key, value string
		most       int
	}{{"subject", t.Subject, 256}, {"agent", t.Agent, 128}, {"owner", t.Owner, 256}} {
		if len(field.value) > field.most {
			p.addf(path+"."+field.key, "%d bytes are more than %d", len(field.value), field.most)
		}
	}
	if principal.IsReserved(t.Subject) {
		p.addf(path+".subject", "%q is a subject that only the mesh makes: use a subject that does not begin with agent:, act: or system:", t.Subject)
	}
	switch {
	case len(t.Servers) > maxTokenServers:
		p.addf(path+".servers", "%d servers are more than %d", len(t.Servers), maxTokenServers)
	case len(t.Servers) > 0 && t.Role != "agent":
		p.addf(path+".servers", "only tokens of agents can be for some servers")
	}
	for i, name := range t.Servers {
		if !serverName.MatchString(name) {
			p.addf(fmt.Sprintf("%s.servers[%d]", path, i), "%q is not a name of 1 to 32 lower-case letters, digits or -", name)
		}
	}
	if len(t.Groups) > maxGroups {
		p.addf(path+".groups", "%d groups are more than %d", len(t.Groups), maxGroups)
	}
	seen := make(map[string]bool, len(t.Groups))
	for i, group := range t.Groups {
		switch at := fmt.Sprintf("%s.groups[%d]", path, i); {
		case group == "" || len(group) > maxGroupName:
			p.addf(at, "is not a name of 1 to %d bytes", maxGroupName)
		case seen[group]:
			p.addf(at, "%q is listed twice", group)
		}
		seen[group] = true
	}
}

func (f *File) checkRoles(p *problems) {
	known := slices.Sorted(maps.Keys(defaultRoles()))
	for _, name := range slices.Sorted(maps.Keys(f.Roles)) {
		if !slices.Contains(known, name) {
			p.addf("roles."+name, "is not a role: use %s", strings.Join(known, ", "))
			continue
		}
		p.checkAddress("roles."+name+".listen", f.Roles[name].Listen)
		p.checkAddress("roles."+name+".addr", f.Roles[name].Addr)
	}
}

func (f *File) checkNumbers(p *problems) {
	f.Journal.check(p)
	if n := f.Agents.Workers; n < 1 || n > 64 {
		p.addf("agents.workers", "%d is not between 1 and 64", n)
	}
	f.Agents.checkPlaces(p)
	p.checkHold("approvals.hold", f.Approvals.Hold)
	for i, c := range f.Approvals.Clients {
		at := fmt.Sprintf("approvals.clients[%d]", i)
		if c.Name == "" || len(c.Name) > maxClientName {
			p.addf(at+".name", "must have 1 to %d bytes: write a pattern such as claude-code or *", maxClientName)
		}
		if c.Hold == nil {
			p.addf(at+".hold", "is required: write a duration such as 4m, or 0s to return the ticket immediately")
			continue
		}
		p.checkHold(at+".hold", *c.Hold)
	}
	if on := f.Approvals.Notify.Desktop; on != nil && *on && f.separateRoles {
		p.addf("approvals.notify.desktop", "works only in `sluice up`; remove it, or remove `roles`")
	}
	f.checkPolicyChanges(p)
	p.checkBetween("approvals.decide", f.Approvals.Decide, time.Second, maxDuration)
	p.checkBetween("approvals.execute", f.Approvals.Execute, time.Second, maxDuration)
	if n := f.Approvals.MaxPending; n < 1 || n > 1000 {
		p.addf("approvals.max_pending", "%d is not between 1 and 1000", n)
	}
	if n := f.Approvals.MaxAsked.Max; n < 1 || n > 100_000 {
		p.addf("approvals.max_asked.max", "%d is not between 1 and 100000", n)
	}
	p.checkBetween("approvals.max_asked.window", f.Approvals.MaxAsked.Window, time.Second, MaxAskedWindow)
	p.checkBetween("session.idle", f.Session.Idle, time.Second, maxDuration)
	if n := f.Session.MaxPerPrincipal; n < 1 || n > 100_000 {
		p.addf("session.max_per_principal", "%d is not between 1 and 100000", n)
	}
	if n := f.Session.Cap; n < 1 || n > 10_000 {
		p.addf("session.cap", "%d is not between 1 and 10000", n)
	}
	if s := f.Telemetry.Sample; !(s >= 0 && s <= 1) {
		p.addf("telemetry.sample", "%v is not between 0 and 1", s)
	}
	if _, err := ParseLogLevel(f.Log.Level); err != nil {
		p.addf("log.level", "%v", err)
	}
	if f.Telemetry.OTLP != "" {
		p.checkHTTPURL("telemetry.otlp", f.Telemetry.OTLP)
	}
}
