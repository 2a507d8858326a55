package edge_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// admissionCases lists requests that the gateway refuses before it evaluates the policy. For each of them, the client
// receives an error, the server receives no call, the journal has one record with the code, and no rate limit is
// charged.
var admissionCases = []struct {
	id, name, body, code string
}{
	{"P1", "two names", stack.CallRequest(`{"name":"safe","name":"danger"}`), "json_duplicate_key"},
	{"P1", "two names, one escaped", stack.CallRequest(`{"name":"safe","\u006eame":"danger"}`), "json_duplicate_key"},
	{"P1", "two methods", `{"jsonrpc":"2.0","id":7,"method":"ping","method":"tools/call","params":{"name":"danger"}}`, "json_duplicate_key"},
	{"P1", "two params", `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"safe"},"params":{"name":"danger"}}`, "json_duplicate_key"},
	{"P2", "two values for an argument", stack.CallRequest(`{"name":"safe","arguments":{"path":"/ok","path":"/etc/shadow"}}`), "json_duplicate_key"},
	{"P2", "two values, deep inside", stack.CallRequest(`{"name":"safe","arguments":{"a":[{"b":{"c":1,"\u0063":2}}]}}`), "json_duplicate_key"},
	{"P3", "another case of method", `{"jsonrpc":"2.0","id":7,"method":"ping","METHOD":"tools/call","params":{}}`, "field_case_variant"},
	{"P3", "another case of params", `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"safe"},"Params":{"name":"danger"}}`, "field_case_variant"},
	{"P3", "another case of name", stack.CallRequest(`{"name":"safe","Name":"danger"}`), "field_case_variant"},
	{"P3", "the long s for s", stack.CallRequest("{\"name\":\"safe\",\"argument\u017f\":{\"x\":1}}"), "field_case_variant"},
	{"P4", "a second message behind the first", stack.CallRequest(`{"name":"safe"}`) + stack.CallRequest(`{"name":"danger"}`), "json_trailing"},
	{"P4", "junk behind the message", stack.CallRequest(`{"name":"safe"}`) + " x", "json_trailing"},
	{"P5", "a batch", "[" + stack.CallRequest(`{"name":"safe"}`) + "," + stack.CallRequest(`{"name":"danger"}`) + "]", "batch"},
	{"P5", "an empty batch", "[]", "batch"},
	{"P6", "a fraction as id", `{"jsonrpc":"2.0","id":1.5,"method":"tools/call","params":{"name":"safe"}}`, "id_invalid"},
	{"P6", "minus zero as id", `{"jsonrpc":"2.0","id":-0,"method":"tools/call","params":{"name":"safe"}}`, "id_invalid"},
	{"P6", "null as id", `{"jsonrpc":"2.0","id":null,"method":"tools/call","params":{"name":"safe"}}`, "id_invalid"},
	{"P6", "an object as id", `{"jsonrpc":"2.0","id":{},"method":"tools/call","params":{"name":"safe"}}`, "id_invalid"},
	{"P6", "an array as id", `{"jsonrpc":"2.0","id":[],"method":"tools/call","params":{"name":"safe"}}`, "id_invalid"},
	{"P6", "true as id", `{"jsonrpc":"2.0","id":true,"method":"tools/call","params":{"name":"safe"}}`, "id_invalid"},
	{"P6", "no id", `{"jsonrpc":"2.0","method":"tools/call","params":{"name":"safe"}}`, "id_invalid"},
	{"P6", "an id beyond 2^53", `{"jsonrpc":"2.0","id":9007199254740993,"method":"tools/call","params":{"name":"safe"}}`, "id_invalid"},
	{"P7", "an array of arguments", stack.CallRequest(`{"name":"safe","arguments":[]}`), "params_invalid"},
	{"P7", "a string of arguments", stack.CallRequest(`{"name":"safe","arguments":"x"}`), "params_invalid"},
	{"P8", "a number beyond float64", stack.CallRequest(`{"name":"safe","arguments":{"n":1e400}}`), "json_number"},
	{"P8", "an integer of 2^64", stack.CallRequest(`{"name":"safe","arguments":{"n":18446744073709551616}}`), "json_number"},
	{"P11", "65 levels", stack.CallRequest(`{"name":"safe","arguments":` + strings.Repeat(`{"a":`, 64) + `1` + strings.Repeat(`}`, 64) + `}`), "json_too_deep"},
	{"P11", "100,000 keys", stack.CallRequest(`{"name":"safe","arguments":{` + manyKeys(100_000) + `}}`), "json_too_many_tokens"},
	{"P11", "one byte too many", stack.CallRequest(`{"name":"safe","arguments":{"x":"` + strings.Repeat("a", 4<<20) + `"}}`), "body_too_large"},
	{"P12", "invalid UTF-8", stack.CallRequest("{\"name\":\"safe\",\"arguments\":{\"x\":\"\xff\"}}"), "json_encoding"},
	{"P12", "a lone surrogate", stack.CallRequest(`{"name":"safe","arguments":{"x":"\ud800"}}`), "json_encoding"},
	{"P12", "a byte order mark", "\ufeff" + stack.CallRequest(`{"name":"safe"}`), "json_encoding"},
	{"P12", "a raw control byte", stack.CallRequest("{\"name\":\"safe\",\"arguments\":{\"x\":\"\x01\"}}"), "json_invalid"},
	{"P13", "a Cyrillic letter", stack.CallRequest("{\"name\":\"saf\u0435\"}"), "tool_name_invalid"},
	{"P13", "a zero width space", stack.CallRequest("{\"name\":\"safe\u200b\"}"), "tool_name_invalid"},
	{"P13", "a trailing space", stack.CallRequest(`{"name":"safe "}`), "tool_name_invalid"},
}

func manyKeys(n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"k%d":1`, i)
	}
	return b.String()
}

func TestAdmission_InvalidMessagesAreRefused(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, stack.OpenPolicy, "")
	c := f.Connect(t)
	for _, tt := range admissionCases {
		t.Run(tt.id+" "+tt.name, func(t *testing.T) {
			before := len(f.Records(t))
			resp := c.Post(tt.body)
			if resp.Status != http.StatusBadRequest {
				t.Errorf("status %d, want 400: %s", resp.Status, resp.Body)
			}
			if code := resp.ErrorCode(t); code != -32700 && code != -32600 && code != -32602 {
				t.Errorf("JSON-RPC error %d, want -32700, -32600 or -32602", code)
			}
			d := resp.Decision(t)
			if d.Code != tt.code {
				t.Errorf("refused as %q, want %q: %s", d.Code, tt.code, resp.Body)
			}
			if calls := f.Upstream.Calls(); len(calls) != 0 {
				t.Errorf("%d calls reached the server: %s", len(calls), calls[0].Body)
			}
			records := f.Records(t)
			if len(records) != before+1 || records[len(records)-1].GetDecisionId() != d.ID || d.ID == "" {
				t.Errorf("%d new records, want one, of decision %q", len(records)-before, d.ID)
			}
		})
	}
	t.Run("no quota was spent", func(t *testing.T) {
		for range 3 {
			if resp := c.Call("limited", "{}"); resp.IsError(t) {
				t.Fatalf("a call within the limit was refused: %s", resp.Body)
			}
		}
	})
}

// Case P5.
func TestAdmission_BatchIsRefusedInEveryRevision(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, stack.OpenPolicy, "")
	c := f.Connect(t)
	for _, version := range []string{"", "2025-03-26", "2025-06-18", "2025-11-25"} {
		c.Version = version
		if resp := c.Post("[" + stack.CallRequest(`{"name":"danger"}`) + "]"); resp.Decision(t).Code != "batch" {
			t.Errorf("version %q: %d %s", version, resp.Status, resp.Body)
		}
	}
	if n := len(f.Upstream.Calls()); n != 0 {
		t.Errorf("%d calls reached the server", n)
	}
}

// Case P7.
func TestAdmission_NullArgumentsCountAsAbsent(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, stack.OpenPolicy, "")
	if resp := f.Connect(t).Call("safe", "null"); resp.Status != http.StatusOK || resp.IsError(t) {
		t.Errorf("%d %s", resp.Status, resp.Body)
	}
}

// Case P11. A compressed body is refused before it is read.
func TestAdmission_CompressedBodyIsRefused(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, stack.OpenPolicy, "")
	c := f.Connect(t)
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	for range 1024 {
		if _, err := z.Write(make([]byte, 64<<10)); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	c.Header = http.Header{"Content-Encoding": {"gzip"}}
	resp := c.Post(bomb.String())
	if resp.Status != http.StatusUnsupportedMediaType || resp.Decision(t).Code != "media_type" {
		t.Errorf("%d %s", resp.Status, resp.Body)
	}
	if n := len(f.Upstream.Calls()); n != 0 {
		t.Errorf("%d calls reached the server", n)
	}
}

// Case N1. A request is refused if its Host or Origin header belongs to another site, or if its content type is not
// accepted.
func TestAdmission_ForeignHostOrOriginIsRefused(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, stack.OpenPolicy, "")
	tests := []struct {
		name   string
		header http.Header
		status int
		code   string
	}{
		{"a foreign Host", http.Header{"Host": {"evil.example"}}, http.StatusForbidden, "host_refused"},
		{"a Host that starts like ours", http.Header{"Host": {"localhost.evil.example"}}, http.StatusForbidden, "host_refused"},
		{"a foreign Origin", http.Header{"Origin": {"https://evil.example"}}, http.StatusForbidden, "origin_refused"},
		{"Origin null", http.Header{"Origin": {"null"}}, http.StatusForbidden, "origin_refused"},
		{"two Origins", http.Header{"Origin": {"http://localhost", "https://evil.example"}}, http.StatusForbidden, "origin_refused"},
		{"text/plain", http.Header{"Content-Type": {"text/plain"}}, http.StatusUnsupportedMediaType, "media_type"},
		{"a form", http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}, http.StatusUnsupportedMediaType, "media_type"},
		{"no content type", http.Header{"Content-Type": {""}}, http.StatusUnsupportedMediaType, "media_type"},
		{"another charset", http.Header{"Content-Type": {"application/json; charset=utf-7"}}, http.StatusUnsupportedMediaType, "media_type"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := f.Connect(t)
			c.Header = tt.header
			resp := c.Call("safe", "{}")
			if resp.Status != tt.status || resp.Decision(t).Code != tt.code {
				t.Errorf("%d %s, want %d %s", resp.Status, resp.Body, tt.status, tt.code)
			}
		})
	}
	if n := len(f.Upstream.Calls()); n != 0 {
		t.Errorf("%d calls reached the server", n)
	}
}

// Case H2. A request is refused if it repeats a header in a way that two HTTP parsers could interpret differently.
func TestAdmission_RepeatedHeadersAreRefused(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, stack.OpenPolicy, "")
	c := f.Connect(t)
	for _, header := range []http.Header{
		{"Mcp-Session-Id": {c.Session(), "another"}},
		{"Mcp-Protocol-Version": {"2025-11-25", "2025-06-18"}},
		{"Authorization": {"Bearer " + stack.AgentToken, "Bearer " + stack.OtherToken}},
		{"Mcp-Name": {"safe", "danger"}},
		{"Mcp-Method": {"tools/call", "tools/call"}},
		{"Mcp-Param-Id": {"1", "2"}},
		{"Content-Type": {"application/json", "text/plain"}},
		{"Content-Encoding": {"", "gzip"}},
	} {
		c.Header = header
		if resp := c.Call("safe", "{}"); resp.Status < 400 {
			t.Errorf("%v: %d %s", header, resp.Status, resp.Body)
		}
	}
	if n := len(f.Upstream.Calls()); n != 0 {
		t.Errorf("%d calls reached the server", n)
	}
}
