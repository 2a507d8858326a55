package edge

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
)

// maxInstructions is how much of a server's instructions goes into those of all, and maxAllInstructions
// how much of all servers', in bytes.
const (
	maxInstructions    = 4 << 10
	maxAllInstructions = 32 << 10
)

// hubGreeting is the answer to initialize where there are many servers.
type hubGreeting struct {
	Version string         `json:"jsonrpc"`
	ID      jsontext.Value `json:"id"`
	Result  struct {
		ProtocolVersion string                     `json:"protocolVersion"`
		Capabilities    map[string]map[string]bool `json:"capabilities"`
		ServerInfo      serverInfo                 `json:"serverInfo"`
		Instructions    string                     `json:"instructions"`
	} `json:"result"`
}

// serverInfo is who answers.
type serverInfo struct {
	Name    string `json:"name"`
	Title   string `json:"title"`
	Version string `json:"version"`
}

// openHub opens a session with all servers. None of them hears of it before it is used.
func (x *exchange) openHub(ctx context.Context) dispatch.Response {
	done, err := x.deps.Sessions.Opening(x.has.Of.Accounts)
	if err != nil {
		return x.refuse(ctx, notOpened(err))
	}
	defer done()
	servers, refused := x.reached(ctx)
	if refused != nil {
		return x.refuse(ctx, refused)
	}
	version := x.msg.Version
	if !mcp.IsSupported(version) {
		version = mcp.Supported()[0]
	}
	sess := x.newHub(version)
	body, err := x.greetHub(sess, servers)
	if err != nil {
		return x.refuse(ctx, &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE})
	}
	if err := x.deps.Sessions.Add(sess); err != nil {
		return x.refuse(ctx, notOpened(err))
	}
	return dispatch.Response{Body: [][]byte{body}, Session: sess.ID}
}

func (x *exchange) newHub(version string) *session.Session {
	id, digest := session.NewID()
	sess := &session.Session{
		ID: id, Digest: digest, Key: keyOf(x.Caller, x.server), Accounts: x.has.Of.Accounts, Agent: x.Principal.GetAgent(), Version: version, Opened: time.Now(),
		Client: session.Client{Elicits: elicits(x.msg, version)}, Members: &session.Members{Abilities: x.abilitiesForMany()},
	}
	sess.Client.Name, sess.Client.Version = x.msg.Client()
	return sess
}

// abilitiesForMany are those of the client at hand that more servers than one may use: not the context by
// which a model would see what others have said.
func (x *exchange) abilitiesForMany() []mcp.Ability {
	out := x.abilities()
	for i, a := range out {
		out[i].Options = slices.DeleteFunc(a.Options, func(o mcp.Option) bool { return o.Name == "context" })
	}
	return out
}

// greetHub is the answer to initialize.
func (x *exchange) greetHub(sess *session.Session, servers []*reached) ([]byte, error) {
	out := hubGreeting{Version: "2.0", ID: x.id()}
	r := &out.Result
	r.ProtocolVersion, r.ServerInfo = sess.Version, x.hubInfo()
	var err error
	if r.Capabilities, r.Instructions, err = offered(servers); err != nil {
		return nil, err
	}
	return json.Marshal(out, json.Deterministic(true))
}

// hubInfo is who stands for all servers.
func (x *exchange) hubInfo() serverInfo {
	return serverInfo{Name: "sluice", Title: "Sluice", Version: x.cfg.Version}
}

// offered is what all servers offer together, as far as policy lets the caller have it, and what
// they say of how they are used.
func offered(servers []*reached) (has map[string]map[string]bool, said string, err error) {
	has = map[string]map[string]bool{"tools": {"listChanged": true}}
	said = "Tools and prompts are called <server>__<name> here, and URIs begin with mcp.<server>+."
	for _, s := range servers {
		if s.found == nil { // it may be there later, and then clients do not ask again
			for _, f := range mcp.Features() {
				if s.mayUse(f.Method) && f.Capability != "logging" {
					has[f.Capability] = s.options(has[f.Capability], f)
				}
			}
			continue
		}
		var offers map[string]map[string]bool
		if err := json.Unmarshal(serverCapabilities(s.greeting, s.said), &offers); err != nil {
			return nil, "", err
		}
		delete(offers, "logging") // one level for all is not for one server to be told
		for name, options := range offers {
			if has[name] == nil {
				has[name] = make(map[string]bool)
			}
			maps.Copy(has[name], options)
		}
		if text := s.instructions(); text != "" {
			text = "\n\n" + s.server + " says:\n> " + strings.ReplaceAll(text, "\n", "\n> ") // and so speaks for no other
			if len(said)+len(text) <= maxAllInstructions {
				said += text
			}
		}
	}
	return has, said, nil
}

// mayUse reports whether policy lets the caller use a method on the server.
func (s *reached) mayUse(method string) bool {
	return method == mcp.MethodToolsList || slices.Contains(s.said.Methods, method)
}

// options adds those of a feature that policy lets the caller have.
func (s *reached) options(has map[string]bool, f mcp.Feature) map[string]bool {
	if has == nil {
		has = make(map[string]bool)
	}
	for _, o := range f.Options {
		if o.Method == "" || s.mayUse(o.Method) {
			has[o.Name] = true
		}
	}
	return has
}

// instructions are what the server says of how it is used.
func (s *reached) instructions() string {
	var greeting struct {
		Instructions string `json:"instructions"`
	}
	if err := json.Unmarshal(s.greeting.Result.Of(s.greeting.Raw), &greeting); err != nil {
		return ""
	}
	text := strings.TrimSpace(greeting.Instructions)
	if len(text) > maxInstructions {
		text = strings.ToValidUTF8(text[:maxInstructions], "") + "…"
	}
	return strings.Map(func(r rune) rune { // else a line could begin where the mark is not
		if r == '\r' || r == '\u2028' || r == '\u2029' || r == '\v' || r == '\f' || r == '\u0085' {
			return '\n'
		}
		return r
	}, text)
}
