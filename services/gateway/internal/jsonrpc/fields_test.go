package jsonrpc_test

import (
	"fmt"
	"strings"
	"testing"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
)

// variants returns spellings that some parsers mistake for the given field. Each is escaped for use inside a JSON
// string.
func variants(field string) []string {
	var all []string
	add := func(v string) {
		if v != field {
			all = append(all, v)
		}
	}
	add(strings.ToUpper(field))
	add(strings.ToLower(field))
	for i, c := range field {
		rest := field[i+1:]
		if lower := c | 0x20; 'a' <= lower && lower <= 'z' {
			add(field[:i] + string(c^0x20) + rest)
			all = append(all, fmt.Sprintf(`%s\u%04x%s`, field[:i], c^0x20, rest))
			if lower == 's' {
				all = append(all, field[:i]+"\u017f"+rest, field[:i]+`\u017f`+rest, field[:i]+`\u017F`+rest)
			}
			if lower == 'k' {
				all = append(all, field[:i]+"\u212a"+rest, field[:i]+`\u212A`+rest)
			}
			if lower == 'i' {
				all = append(all, field[:i]+"\u0131"+rest, field[:i]+`\u0130`+rest)
			}
		}
	}
	return all
}

// Case P3.
func TestParse_CaseVariantsOfFieldsAreRefused(t *testing.T) {
	t.Parallel()
	places := []struct {
		name   string
		before string // a message up to the position of the key
		after  string
		fields []string
	}{
		{"envelope", `{"jsonrpc":"2.0","id":1,"method":"tools/list",`, `}`,
			[]string{"jsonrpc", "id", "method", "params", "result", "error"}},
		{"envelope, before all else", `{`, `,"jsonrpc":"2.0","id":1,"method":"tools/list"}`,
			[]string{"jsonrpc", "id", "method", "params", "result", "error"}},
		{"response", `{"jsonrpc":"2.0","id":1,"result":{},`, `}`, []string{"id", "method", "result", "error"}},
		{"params", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"safe","arguments":{},`, `}}`,
			[]string{"name", "arguments", "_meta", "uri", "cursor", "protocolVersion", "capabilities", "clientInfo", "requestId",
				"progressToken", "progress", "reason", "ref", "argument", "context", "task", "taskId", "level", "inputResponses", "requestState"}},
		{"params alone", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{`, `}}`, []string{"name", "arguments", "_meta", "uri"}},
		{"_meta", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"x":1,`, `}}}`,
			[]string{"progressToken", "traceparent", "tracestate", "baggage", "io.modelcontextprotocol/protocolVersion",
				"io.modelcontextprotocol/clientCapabilities", "io.modelcontextprotocol/clientInfo", "io.modelcontextprotocol/logLevel",
				"dev.sluice/run", "dev.sluice/approval"}},
	}
	for _, position := range places {
		t.Run(position.name, func(t *testing.T) {
			t.Parallel()
			for _, field := range position.fields {
				for _, variant := range variants(field) {
					for _, value := range []string{`"tools/call"`, `{}`, `null`} {
						raw := position.before + `"` + variant + `":` + value + position.after
						if got := codeOf(t, raw); got != commonv1.Code_CODE_FIELD_CASE_VARIANT {
							t.Fatalf("%s\n got %v", raw, got)
						}
					}
				}
			}
		})
	}
}

// Case P3. Where unknown keys are allowed, a key that resembles a protocol field is accepted if no parser mistakes it
// for that field.
func TestParse_KeysThatResembleFieldsAreAccepted(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"names", "nam", "Naming", "meta", "_metas", "URL", "x-name", "uri2", "ｎame", "nаme", " name", "name ", "", "Extra", strings.Repeat("N", 200)} {
		accepted(t, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"safe","`+key+`":1}}`)
		accepted(t, toolCall(`{"NAME":1,"name":2,"Method":3,"_META":{},"`+key+`":4}`))
		accepted(t, `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"`+key+`":1,"Name":2}}}`)
	}
	for _, key := range []string{"DEV.sluice/x", "dev.\u017fluice/x", "Dev.Sluice/", "io.modelcontextprotocol\u2044", "IO.modelcontextprotocol/new", "io.modelconte\\u0058tprotocol/new"} {
		got := codeOf(t, `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"`+key+`":1}}}`)
		want := commonv1.Code_CODE_FIELD_CASE_VARIANT
		if strings.Contains(key, "\u2044") { // \u2044 looks like a slash
			want = 0
		}
		if got != want {
			t.Errorf("%s in _meta: got %v, want %v", key, got, want)
		}
	}
	for _, key := range []string{"extra", "_meta", "name", "", "jsonrpc2"} {
		if got := codeOf(t, `{"jsonrpc":"2.0","id":1,"method":"ping","`+key+`":1}`); got != commonv1.Code_CODE_JSONRPC_INVALID {
			t.Errorf("%q in the envelope: got %v", key, got)
		}
	}
}

// Case P12.
func TestParse_InvalidTextIsRefused(t *testing.T) {
	t.Parallel()
	bad := []struct {
		name, text string
		code       commonv1.Code
	}{
		{"a stray continuation byte", "\x80", encoding},
		{"an overlong slash", "\xc0\xaf", encoding},
		{"an overlong NUL", "\xc0\x80", encoding},
		{"a lead byte alone", "\xc3", encoding},
		{"a cut-off character", "\xe2\x82", encoding},
		{"a raw surrogate", "\xed\xa0\x80", encoding},
		{"a raw pair of surrogates (CESU-8)", "\xed\xa0\xbd\xed\xb8\x80", encoding},
		{"a character beyond Unicode", "\xf4\x90\x80\x80", encoding},
		{"a byte that UTF-8 never has", "\xff", encoding},
		{"Latin-1", "caf\xe9", encoding},
		{"a high surrogate alone", `\ud800`, encoding},
		{"a low surrogate alone", `\udc00`, encoding},
		{"surrogates in the wrong order", `\udc00\ud800`, encoding},
		{"two high surrogates", `\uD83D\uD83D`, encoding},
		{"a high surrogate before a letter", `\ud83dx`, encoding},
		{"a high surrogate before an escape", `\ud83d\n`, encoding},
		{"a high surrogate before another escaped character", `\ud83d\u0041`, encoding},
		{"a high surrogate and half an escape", `\ud83d\ude0`, encoding},
		{"a raw NUL", "\x00", invalid},
		{"a raw line feed", "\n", invalid},
		{"a raw tab", "\t", invalid},
		{"a raw escape", "\x1b[31m", invalid},
		{"a raw unit separator", "\x1f", invalid},
		{"an unknown escape", `\x41`, invalid},
		{"an escaped line end", "\\\n", invalid},
		{"a capital U", `\U0041`, invalid},
		{"too few hex digits", `\u004`, invalid},
		{"other digits", `\u00g1`, invalid},
		{"a lone backslash", `\`, invalid},
	}
	places := []string{
		toolCall(`{"v":"_"}`), toolCall(`{"_":1}`), toolCall(`{"v":[[{"w":"ghijklmnop_ghijklmnop"}]]}`), toolCall(`{"ghijklm_kop":{}}`),
		`{"jsonrpc":"2.0","id":"_","method":"ping"}`, `{"jsonrpc":"2.0","id":1,"method":"_"}`,
		`{"jsonrpc":"_","id":1,"method":"ping"}`, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"_"}}`,
		`{"jsonrpc":"2.0","id":1,"result":{"v":"_"}}`, `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"traceparent":"_"}}}`,
	}
	for _, tt := range bad {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for _, position := range places {
				raw := strings.Replace(position, "_", tt.text, 1)
				if strings.Contains(position, "_meta") {
					raw = strings.Replace(position, `"_"`, `"`+tt.text+`"`, 1)
				}
				if got := codeOf(t, raw); got != tt.code {
					t.Errorf("%q\n got %v\nwant %v", raw, got, tt.code)
				}
			}
		})
	}
	utf16 := strings.Join(strings.Split(ping, ""), "\x00")
	refused(t, []refusal{
		{"a byte order mark", "\ufeff" + ping, encoding},
		{"UTF-16 with its mark", "\xff\xfe" + utf16 + "\x00", encoding},
		{"UTF-16 without", utf16 + "\x00", invalid},
		{"bad bytes between tokens", `{"jsonrpc":"2.0",` + "\xff" + `"id":1,"method":"ping"}`, encoding},
		{"a no-break space between tokens", `{"jsonrpc":"2.0",` + "\u00a0" + `"id":1,"method":"ping"}`, invalid},
		{"bad bytes after the message", ping + "\xff", encoding},
	})
	accepted(t, toolCall(`{"v":"é€😀\u00e9\u20ac\ud83d\ude00\uFEFF`+"\ufeff\x7f\u2028"+`\n\u0000\"\\\/\b\f\r\t"}`))
}

// Case P13. A tool name that resembles another tool's name is either refused or parsed exactly as written.
func TestParse_LookAlikeToolNamesAreNotConfused(t *testing.T) {
	t.Parallel()
	names := []string{
		`"saf\u0435"`, `"safе"`, `"ｓafe"`, "\"safe\u200b\"", "\"\u200bsafe\"", `"safe "`, `" safe"`, `"safe\n"`, `"safe\u0000"`, `"sa fe"`,
		`"safé"`, "\"safe\u0301\"", "\"safe\u202e\"", "\"safe\u00a0\"", `"safe$"`, `"safe:x"`, `"safe\\x"`, `"safe?"`, `"safe#x"`, `"safe%20"`, `"safe\u007f"`,
		`"safe;x"`, `"safe,x"`, `"safe*"`, `"@safe"`, `"~safe"`, `"(safe)"`, `"sa\tfe"`, `"` + "\u017f" + `afe"`, `"\u017fafe"`,
		`""`, `"` + strings.Repeat("a", 129) + `"`, `null`, `1`, `true`, `{}`, `[]`, `["safe"]`, `{"name":"safe"}`,
	}
	for _, name := range names {
		raw := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":` + name + `,"arguments":{}}}`
		if got := codeOf(t, raw); got != commonv1.Code_CODE_TOOL_NAME_INVALID {
			t.Errorf("%s: got %v", raw, got)
		}
	}
	for _, raw := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"tools/call"}`, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"arguments":{"name":"safe"}}}`,
	} {
		if got := codeOf(t, raw); got != commonv1.Code_CODE_TOOL_NAME_INVALID {
			t.Errorf("%s: got %v", raw, got)
		}
	}
	for raw, want := range map[string]string{
		`"safe"`: "safe", `"a"`: "a", `"A-Z_0.9/x"`: "A-Z_0.9/x", `"fs\/re\u0061d"`: "fs/read", `"` + strings.Repeat("a", 128) + `"`: strings.Repeat("a", 128),
	} {
		m := accepted(t, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":`+raw+`}}`)
		if m.Name != want || string(m.NameValue.Of(m.Raw)) != raw {
			t.Errorf("%s was read as %q, value %s", raw, m.Name, m.NameValue.Of(m.Raw))
		}
	}
}

// Case P13. A method that resembles another method is either refused or parsed exactly as written.
func TestParse_LookAlikeMethodsAreNotConfused(t *testing.T) {
	t.Parallel()
	for _, method := range []string{
		`"tools\u2044call"`, `"tооls/call"`, `"tools/call "`, `" tools/call"`, `"tools/call\u0000"`, `"tools\\call"`, "\"tools/call\u200b\"", `"ｔools/call"`,
		`"tools:call"`, `"tools/call?"`, `""`, `"` + strings.Repeat("a", 129) + `"`, `null`, `1`, `true`, `{}`, `[]`, `["tools/call"]`,
		`"notifications/ "`, `"\u212a"`,
		`"TOOLS/CALL"`, `"Tools/call"`, `"tools/List"`, `"\u0054ools/call"`, `"Initialize"`, `"logging/setlevel"`, `"Notifications/initialized"`, `"prompts/GET"`,
	} {
		raw := `{"jsonrpc":"2.0","id":1,"method":` + method + `,"params":{"name":"safe"}}`
		if got := codeOf(t, raw); got != commonv1.Code_CODE_METHOD_INVALID {
			t.Errorf("%s: got %v", raw, got)
		}
	}
	for raw, want := range map[string]string{
		`"tools\/call"`: "tools/call", `"\u0074ools/call"`: "tools/call", `"$/x.y_z-1"`: "$/x.y_z-1", `"X/Y"`: "X/Y", `"TOOLS/CALLED"`: "TOOLS/CALLED",
		`"` + strings.Repeat("a", 128) + `"`: strings.Repeat("a", 128),
	} {
		m := accepted(t, `{"jsonrpc":"2.0","id":1,"method":`+raw+`,"params":{"name":"safe"}}`)
		if m.Method != want {
			t.Errorf("%s was read as %q", raw, m.Method)
		}
	}
}
