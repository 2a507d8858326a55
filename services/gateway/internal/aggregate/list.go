// Package aggregate combines many MCP servers into one: it joins their lists, capabilities and instructions, and
// reports which lists have changed. It sends nothing itself.
package aggregate

import (
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcpschema"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/internal/enum"
)

const (
	// MaxList is the maximum size of the joined list, in bytes. Servers that do not fit are named in it.
	MaxList = 16 << 20
	// maxLeftOut is how many elements that were left out a list names.
	maxLeftOut = 200
	// maxName is how much of the name of such an element is shown, in bytes.
	maxName = 128
)

// ErrNoList means that a server's answer lacks the list that was asked for.
var ErrNoList = errors.New("the server's answer is not a list")

// Part is what one server adds to a list.
type Part struct {
	Server string
	// Elements are JSON values with commas between them, Size bytes together.
	Elements [][]byte
	Size     int
	// Missing is why the server is missing from the list; nil if it is not.
	Missing *refusal.Refusal
	// LeftOut are elements of the server's list that are missing in the joined list.
	LeftOut []LeftOut
}

// LeftOut names an element that is missing from a list, and why.
type LeftOut struct {
	Server string `json:"server"`
	Name   string `json:"name,omitzero"`
	Why    string `json:"why"`
}

// unavailable names a server that is missing from a list, and why.
type unavailable struct {
	Server string `json:"server"`
	Code   string `json:"code"`
	Why    string `json:"why,omitzero"`
}

// FieldOf returns the member of a result that contains the list of a method. It is empty for a method whose answer is
// not a list, or is not collected from servers.
func FieldOf(method string) string {
	switch method {
	case "prompts/list":
		return "prompts"
	case "resources/list":
		return "resources"
	case "resources/templates/list":
		return "resourceTemplates"
	default:
		return ""
	}
}

// CapabilityOf returns the capability of servers that have such a list.
func CapabilityOf(field string) string {
	if field == "resourceTemplates" {
		return "resources"
	}
	return field
}

// Elements returns the elements of the list in an answer, and the cursor of the next page as raw JSON, which is empty
// if there is none. A server that does not know the method has no elements. If the answer contains no list, the error
// wraps [ErrNoList].
func Elements(answer []byte, field string) (items []jsontext.Value, next string, err error) {
	var read struct {
		Result map[string]jsontext.Value `json:"result"`
		Error  struct {
			Code float64 `json:"code"`
		} `json:"error"`
	}
	if err := json.Unmarshal(answer, &read); err != nil {
		return nil, "", fmt.Errorf("%w: %w", ErrNoList, err)
	}
	if read.Error.Code == mcp.CodeMethodUnknown {
		return nil, "", nil
	}
	if read.Result[field].Kind() != '[' {
		return nil, "", ErrNoList
	}
	if err := json.Unmarshal(read.Result[field], &items); err != nil {
		return nil, "", fmt.Errorf("%w: %w", ErrNoList, err)
	}
	if cursor := read.Result["nextCursor"]; cursor.Kind() == '"' && string(cursor) != `""` {
		next = string(cursor)
	}
	return items, next, nil
}

// NextPage returns the request for the page of a list at a raw cursor, with the _meta of the request before it.
func NextPage(before *gate.Message, cursor string, limits gate.Limits) (*gate.Message, error) {
	params := `"cursor":` + cursor
	if meta := before.Meta.Object; meta.Present() {
		params += `,"_meta":` + string(meta.Of(before.Raw))
	}
	return gate.Parse(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"method":"%s","params":{%s}}`, before.ID.Of(before.Raw), before.Method, params), limits)
}

// Conform returns the elements of a server's list that are valid in MCP, and adds the others to LeftOut. A client
// that checks elements would refuse the whole list for one of them, and with it the elements of all other servers.
func (p *Part) Conform(field string, items []jsontext.Value) []jsontext.Value {
	var out []jsontext.Value
	for _, item := range items {
		element, why := mcpschema.Conform(field, item)
		if why == "" {
			out = append(out, element)
			continue
		}
		var has struct {
			Name jsontext.Value `json:"name"`
		}
		_ = json.Unmarshal(item, &has) // an element without a name is left out, too
		name, err := jsontext.AppendUnquote(nil, has.Name)
		if err != nil {
			name = nil
		}
		if len(p.LeftOut) < maxLeftOut {
			p.LeftOut = append(p.LeftOut, LeftOut{p.Server, strings.ToValidUTF8(string(name[:min(len(name), maxName)]), ""), "it is not valid in MCP: " + why})
		}
	}
	return out
}

// Add adds one element, and a comma if it is not the first.
func (p *Part) Add(element []byte) {
	if p.Size > 0 {
		p.Elements = append(p.Elements, []byte(","))
	}
	p.Elements = append(p.Elements, element)
	p.Size += len(element)
}

// Clear removes all elements, because the server is missing from the list.
func (p *Part) Clear(why *refusal.Refusal) { p.Elements, p.Size, p.Missing = nil, 0, why }

// Join returns the response to a request with this raw id, in parts: one list with the elements of all servers. It
// names the servers that are missing or whose list may be out of date, and the elements that were left out. members
// are the members of the result before the list, with a comma after each.
func Join(id []byte, members, field string, servers []*Part) [][]byte {
	body := [][]byte{fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{%s"%s":[`, id, members, field)}
	var missing []unavailable
	var without []LeftOut
	size := 0
	for _, p := range servers {
		if size+p.Size > MaxList {
			p.Clear(&refusal.Refusal{Code: commonv1.Code_CODE_BODY_TOO_LARGE})
		}
		if p.Missing != nil {
			missing = append(missing, unavailable{Server: p.Server, Code: enum.Given(p.Missing.Code), Why: p.Missing.Message})
		} else {
			without = append(without, p.LeftOut[:min(len(p.LeftOut), maxLeftOut-len(without))]...)
		}
		if p.Size == 0 {
			continue
		}
		if size > 0 {
			body = append(body, []byte(","))
		}
		body = append(body, p.Elements...)
		size += p.Size
	}
	end := []byte("]}}")
	if meta, err := metaOf(missing, without); err == nil && meta != nil {
		end = fmt.Appendf(nil, `],"_meta":%s}}`, meta)
	}
	return append(body, end)
}

// metaOf returns the `_meta` of a list; nil if it would be empty.
func metaOf(missing []unavailable, without []LeftOut) ([]byte, error) {
	meta := make(map[string]any)
	if len(missing) > 0 {
		meta[mcp.MetaUnavailable] = missing
	}
	if len(without) > 0 {
		meta[mcp.MetaLeftOut] = without
	}
	if len(meta) == 0 {
		return nil, nil
	}
	return json.Marshal(meta, json.Deterministic(true))
}
