package mcp

import (
	"bytes"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// FilterCapabilities returns the part of a server's capabilities that the caller may see, as a raw JSON object.
// capabilities is the server's raw object. FilterCapabilities removes unknown features and options, and those whose
// methods are not allowed. It adds the given extensions, which the gateway itself provides, whatever the server declares.
// If capabilities is not one complete JSON object, the server counts as one that declares nothing.
func FilterCapabilities(capabilities []byte, allowed func(method string) bool, extensions ...string) []byte {
	return []byte("{" + strings.Join(append(allowedFeatures(capabilities, allowed), ExtensionMembers(extensions)...), ",") + "}")
}

// allowedFeatures returns the features in a server's capabilities that the caller may see, as raw JSON members. It
// returns none if capabilities is not one complete JSON object.
func allowedFeatures(capabilities []byte, allowed func(method string) bool) (offered []string) {
	dec := jsontext.NewDecoder(bytes.NewReader(capabilities))
	if tok, err := dec.ReadToken(); err != nil || tok.Kind() != '{' {
		return nil
	}
	for dec.PeekKind() == '"' {
		key, err := dec.ReadToken()
		if err != nil {
			return nil
		}
		name, isObject := key.String(), dec.PeekKind() == '{'
		value, err := dec.ReadValue()
		if err != nil {
			return nil
		}
		for _, f := range Features() {
			if isObject && f.Capability == name && (f.Method == "" || allowed(f.Method)) {
				offered = append(offered, `"`+name+`":{`+strings.Join(filterOptions(f, value, allowed), ",")+`}`)
			}
		}
	}
	if _, err := dec.ReadToken(); err != nil { // the end of the object
		return nil
	}
	return offered
}

// filterOptions returns the options of a feature as raw JSON members. It omits options that the server does not
// declare, and options whose methods are not allowed.
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
