// Package aggregate combines many MCP servers into one. It joins their lists, capabilities and instructions, and
// reports which lists have changed. It also maps all servers' names to one namespace: the combined name of a tool,
// prompt, resource or request contains the server's name and the name that the server itself uses. The package sends no
// messages and needs no state, because a combined name contains all the information.
package aggregate

import (
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcpschema"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/internal/enum"
)

const (
	// MaxList is the maximum size of the joined list, in bytes. If the elements of a server do not fit, the joined list
	// reports that this server is missing.
	MaxList = 16 << 20
	// maxLeftOut is the maximum number of omitted elements that a list reports.
	maxLeftOut = 200
	// maxName is the maximum length of an omitted element's name, in bytes.
	maxName = 128
)

// ErrNoList means that a server's answer does not contain the requested list.
var ErrNoList = errors.New("the server's answer is not a list")

// Part contains the elements of one server in a joined list.
type Part struct {
	Server string
	// Elements are JSON values with commas between them. Size is their total size in bytes.
	Elements [][]byte
	Size     int
	// Missing is the reason why the server is missing from the joined list, or nil if it is not missing.
	Missing *refusal.Refusal
	// LeftOut describes the elements that the server lists but that are missing from the joined list.
	LeftOut []LeftOut
}

// LeftOut describes an element that is missing from a list, and the reason why it is missing.
type LeftOut struct {
	Server string `json:"server"`
	Name   string `json:"name,omitzero"`
	Why    string `json:"why"`
}

type unavailable struct {
	Server string `json:"server"`
	Code   string `json:"code"`
	Why    string `json:"why,omitzero"`
}

// FieldOf returns the name of the member that contains the list in a method's result. It returns "" for tools/list and
// for each method that returns no list of prompts, resources or resource templates.
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

// CapabilityOf returns the capability that a server declares if it has the list in the given field.
func CapabilityOf(field string) string {
	if field == "resourceTemplates" {
		return "resources"
	}
	return field
}

// Elements returns the elements of the list in a response, and the cursor of the next page as raw JSON. The cursor is
// empty if there is no next page. If the server does not know the method, there are no elements. If the response does
// not contain a list, the error wraps [ErrNoList].
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

// NextPage returns the request for the page with the given cursor, which is raw JSON. It copies _meta from the request
// for the previous page, which is the parameter before.
func NextPage(before *jsonrpc.Message, cursor string, limits jsonrpc.Limits) (*jsonrpc.Message, error) {
	params := `"cursor":` + cursor
	if meta := before.Meta.Object; meta.Present() {
		params += `,"_meta":` + string(meta.Of(before.Raw))
	}
	return jsonrpc.Parse(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"method":"%s","params":{%s}}`, before.ID.Of(before.Raw), before.Method, params), limits)
}

// Conform returns the elements of a server's list that are valid in MCP. It adds the invalid elements to p.LeftOut. A
// client that validates elements might reject the whole joined list because of one invalid element, and would then lose
// the elements of all servers.
func (p *Part) Conform(field string, items []jsontext.Value) []jsontext.Value {
	var out []jsontext.Value
	for _, item := range items {
		element, why := mcpschema.Conform(field, item)
		if why == "" {
			out = append(out, element)
			continue
		}
		var named struct {
			Name jsontext.Value `json:"name"`
		}
		_ = json.Unmarshal(item, &named) // an element without a name is also left out
		name, err := jsontext.AppendUnquote(nil, named.Name)
		if err != nil {
			name = nil
		}
		if len(p.LeftOut) < maxLeftOut {
			p.LeftOut = append(p.LeftOut, LeftOut{p.Server, strings.ToValidUTF8(string(name[:min(len(name), maxName)]), ""), "it is not valid in MCP: " + why})
		}
	}
	return out
}

// Add adds an element, with a comma before it unless it is the first.
func (p *Part) Add(element []byte) {
	if p.Size > 0 {
		p.Elements = append(p.Elements, []byte(","))
	}
	p.Elements = append(p.Elements, element)
	p.Size += len(element)
}

// Clear removes all elements and sets the reason why the server is missing from the list.
func (p *Part) Clear(why *refusal.Refusal) { p.Elements, p.Size, p.Missing = nil, 0, why }

// Join returns, in several parts, the response to the request with the given raw id. The response contains one list
// with all servers' elements. It also lists the servers that are missing or whose lists may be outdated, and the
// omitted elements. The parameter members contains the members that precede the list in the result, with a comma after
// each.
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
			missing = append(missing, unavailable{Server: p.Server, Code: enum.NameOrEmpty(p.Missing.Code), Why: p.Missing.Message})
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
	if meta, err := listMeta(missing, without); err == nil && meta != nil {
		end = fmt.Appendf(nil, `],"_meta":%s}}`, meta)
	}
	return append(body, end)
}

// listMeta returns the `_meta` of the joined list, or nil if it would be empty.
func listMeta(missing []unavailable, without []LeftOut) ([]byte, error) {
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
