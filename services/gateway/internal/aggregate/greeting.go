package aggregate

import (
	"maps"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
)

// maxInstructions limits the size of one server's instructions, in bytes. maxAllInstructions limits the size of all
// servers' instructions together, in bytes.
const (
	maxInstructions    = 4 << 10
	maxAllInstructions = 32 << 10
)

// Greeting contains a server's answer to initialize or server/discover, and what the caller may use on that server.
type Greeting struct {
	Server string
	// Answer is the server's answer to initialize or server/discover, or nil if the server has not answered yet.
	Answer *jsonrpc.Answer
	// Allowed reports whether the caller may use the given method on the server.
	Allowed func(method string) bool
}

// Capabilities returns the capabilities that the caller may use on at least one of the servers. If a server has not
// answered yet, Capabilities assumes that it has all MCP capabilities, because clients read the capabilities only once.
// Capabilities omits logging, because a client can't set the log level for one server alone.
func Capabilities(servers []Greeting) (map[string]map[string]bool, error) {
	all := map[string]map[string]bool{"tools": {"listChanged": true}}
	for _, s := range servers {
		capabilities, err := s.capabilities()
		if err != nil {
			return nil, err
		}
		delete(capabilities, "logging")
		for name, options := range capabilities {
			if all[name] == nil {
				all[name] = make(map[string]bool)
			}
			maps.Copy(all[name], options)
		}
	}
	return all, nil
}

func (s Greeting) capabilities() (has map[string]map[string]bool, err error) {
	if s.Answer != nil {
		err = json.Unmarshal(mcp.FilterCapabilities(s.Answer.Capabilities.Of(s.Answer.Raw), s.Allowed), &has)
		return has, err
	}
	has = make(map[string]map[string]bool)
	for _, f := range mcp.Features() {
		if !s.Allowed(f.Method) {
			continue
		}
		has[f.Capability] = make(map[string]bool)
		for _, o := range f.Options {
			if o.Method == "" || s.Allowed(o.Method) {
				has[f.Capability][o.Name] = true
			}
		}
	}
	return has, nil
}

// Instructions returns a sentence that explains combined names, followed by all servers' instructions. It marks each
// line of a server's instructions as a quotation, so that a server cannot imitate another server or the gateway.
func Instructions(servers []Greeting) string {
	all := "Tools and prompts are called <server>__<name> here, and URIs begin with mcp.<server>+."
	for _, s := range servers {
		if s.Answer == nil {
			continue
		}
		if text := s.instructions(); text != "" {
			text = "\n\n" + s.Server + " says:\n> " + strings.ReplaceAll(text, "\n", "\n> ")
			if len(all)+len(text) <= maxAllInstructions {
				all += text
			}
		}
	}
	return all
}

func (s Greeting) instructions() string {
	var greeting struct {
		Instructions string `json:"instructions"`
	}
	if err := json.Unmarshal(s.Answer.Result.Of(s.Answer.Raw), &greeting); err != nil {
		return ""
	}
	text := strings.TrimSpace(greeting.Instructions)
	if len(text) > maxInstructions {
		text = strings.ToValidUTF8(text[:maxInstructions], "") + "…"
	}
	// Some programs treat these characters as line breaks. They become newlines here, so that [Instructions] marks
	// every line as a quotation.
	return strings.Map(func(r rune) rune {
		if r == '\r' || r == '\u2028' || r == '\u2029' || r == '\v' || r == '\f' || r == '\u0085' {
			return '\n'
		}
		return r
	}, text)
}
