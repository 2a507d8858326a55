// Package aggregate presents many MCP servers as one server. It joins their lists, capabilities and instructions, and
// reports which lists have changed. It also gives the servers' tools, prompts, resources and requests combined names,
// which consist of the server's name and the name that the server itself uses. The package sends no messages. It needs
// no state, because the server and the server's own name can be read from a combined name.
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
	// MaxList limits the size of a joined list, in bytes. If the elements of a server do not fit, the joined list
	// reports that this server is missing.
	MaxList = 16 << 20
	// maxLeftOut limits how many omitted elements a joined list reports.
	maxLeftOut = 200
	// maxName limits the length of an omitted element's name in the report, in bytes. Longer names are truncated.
	maxName = 128
)

// ErrNoList means that a server's answer does not contain the requested list.
var ErrNoList = errors.New("the server's answer is not a list")

// Part contains the elements of one server in a joined list.
type Part struct {
	Server string
	// Elements contains the server's elements as JSON values, with a comma after each except the last. Size is their
	// total size, in bytes.
	Elements [][]byte
	Size     int
	// Missing is the reason why the joined list does not contain this server's elements, or nil if it contains them.
	Missing *refusal.Refusal
	// LeftOut describes the elements that the server lists but the joined list omits.
	LeftOut []LeftOut
}

// LeftOut describes an element that was omitted from a joined list, and the reason.
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

// FieldOf returns the name of the member that contains the list in a method's result. It returns "" for all methods
// that do not list prompts, resources or resource templates. In particular, it returns "" for tools/list.
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

// CapabilityOf returns the capability that a server must declare in order to offer the list with the given field name.
func CapabilityOf(field string) string {
	if field == "resourceTemplates" {
		return "resources"
	}
	return field
}

// Elements returns the elements of the list in a response, and the cursor of the next page as raw JSON. The cursor is
// empty if there is no next page. If the response says that the server does not know the method, Elements returns no
// elements and no error. If the response contains neither a list nor that error, Elements returns an error that wraps
// [ErrNoList].
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

// NextPage returns the request for the page with the given cursor, which must be raw JSON. It copies the id, the method
// and `_meta` from the request for the previous page.
func NextPage(previous *jsonrpc.Message, cursor string, limits jsonrpc.Limits) (*jsonrpc.Message, error) {
	params := `"cursor":` + cursor
	if meta := previous.Meta.Object; meta.Present() {
		params += `,"_meta":` + string(meta.Of(previous.Raw))
	}
	return jsonrpc.Parse(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"method":"%s","params":{%s}}`, previous.ID.Of(previous.Raw), previous.Method, params), limits)
}

// Conform returns the valid elements of a server's list, and adds the invalid ones to p.LeftOut. Invalid elements must
// be omitted, because a client that validates a joined list might reject the whole list, and thus the elements of all
// servers.
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
		_ = json.Unmarshal(item, &named) // on an error, the element is left out without a name
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

// Add appends an element to the part. It puts a comma before the element, except before the first one.
func (p *Part) Add(element []byte) {
	if p.Size > 0 {
		p.Elements = append(p.Elements, []byte(","))
	}
	p.Elements = append(p.Elements, element)
	p.Size += len(element)
}

// Clear removes all elements from the part and sets the reason why the joined list does not contain them.
func (p *Part) Clear(why *refusal.Refusal) { p.Elements, p.Size, p.Missing = nil, 0, why }

// Join returns the response to the request with the given raw id, as a sequence of byte slices. The response contains
// one list with all servers' elements. In `_meta` it names the servers whose elements are missing or may be outdated,
// and the omitted elements. The caller may pass members that precede the list in the result; each of them must end with
// a comma.
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
