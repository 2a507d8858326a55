package mcp

import (
	"bytes"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// FilterCapabilities returns the part of a server's capabilities object, which is raw JSON, that the caller may see. It
// removes unknown features and options, and those whose methods are not allowed. It adds the given extensions, which
// the gateway itself provides. If the input is not an object, FilterCapabilities returns the extensions at most.
func FilterCapabilities(capabilities []byte, allowed func(method string) bool, extensions ...string) []byte {
	dec := jsontext.NewDecoder(bytes.NewReader(capabilities))
	if tok, err := dec.ReadToken(); err != nil || tok.Kind() != '{' {
		return []byte("{}")
	}
	var offered []string
	for dec.PeekKind() == '"' {
		key, err := dec.ReadToken()
		if err != nil {
			break
		}
		name, isObject := key.String(), dec.PeekKind() == '{'
		value, err := dec.ReadValue()
		if err != nil {
			break
		}
		for _, f := range Features() {
			if isObject && f.Capability == name && (f.Method == "" || allowed(f.Method)) {
				offered = append(offered, `"`+name+`":{`+strings.Join(filterOptions(f, value, allowed), ",")+`}`)
			}
		}
	}
	return []byte("{" + strings.Join(append(offered, ExtensionMembers(extensions)...), ",") + "}")
}

// filterOptions returns those options of a feature that the server declares and whose methods are allowed, as raw JSON
// members.
func filterOptions(f Feature, feature jsontext.Value, allowed func(method string) bool) (out []string) {
	var has struct {
		ListChanged jsontext.Value `json:"listChanged"`
		Subscribe   jsontext.Value `json:"subscribe"`
	}
	if json.Unmarshal(feature, &has) != nil {
		return nil
	}
	values := map[string]jsontext.Value{"listChanged": has.ListChanged, "subscribe": has.Subscribe}
	for _, o := range f.Options {
		if (o.Method == "" || allowed(o.Method)) && values[o.Name].Kind() == 't' {
			out = append(out, `"`+o.Name+`":true`)
		}
	}
	return out
}
