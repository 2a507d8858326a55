package mcp_test

import (
	"testing"

	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
)

// The gateway's own extensions are always there. A server whose capabilities are not one complete object declares
// nothing.
func TestFilterCapabilities_AlwaysHasTheGatewaysExtensions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ capabilities, want string }{
		"an object":       {`{"tools":{"listChanged":true},"vendor":{}}`, `{"tools":{"listChanged":true},"extensions":{"x/y":{}}}`},
		"an empty object": {`{}`, `{"extensions":{"x/y":{}}}`},
		"absent":          {``, `{"extensions":{"x/y":{}}}`},
		"null":            {`null`, `{"extensions":{"x/y":{}}}`},
		"an array":        {`[{"tools":{}}]`, `{"extensions":{"x/y":{}}}`},
		"a text":          {`"tools"`, `{"extensions":{"x/y":{}}}`},
		"without an end":  {`{"tools":{}`, `{"extensions":{"x/y":{}}}`},
		"cut in a value":  {`{"tools":{},"prompts":{`, `{"extensions":{"x/y":{}}}`},
		"cut in a name":   {`{"tools":{},"pro`, `{"extensions":{"x/y":{}}}`},
		"not JSON":        {`{"tools":{},}`, `{"extensions":{"x/y":{}}}`},
	} {
		all := func(string) bool { return true }
		if got := string(mcp.FilterCapabilities([]byte(c.capabilities), all, "x/y")); got != c.want {
			t.Errorf("%s: %s instead of %s", name, got, c.want)
		}
	}
	if got := string(mcp.FilterCapabilities([]byte(`null`), func(string) bool { return true })); got != "{}" {
		t.Errorf("without extensions: %s", got)
	}
}
