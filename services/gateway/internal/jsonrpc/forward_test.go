package jsonrpc_test

import "testing"

// WithoutRetryMembers removes the server's state and the client's responses from a repeated request, regardless of
// their position. It changes nothing else.
func TestWithoutRetryMembers_RestoresFirstForm(t *testing.T) {
	t.Parallel()
	const state = `"requestState":"s"`
	for name, tt := range map[string]struct{ params, left string }{
		"first":   {`{` + state + `, "name":"pay","arguments":{"sum":1.50}}`, `{"name":"pay","arguments":{"sum":1.50}}`},
		"between": {`{"name":"pay", ` + state + ` ,"arguments":{"requestState":"x"}}`, `{"name":"pay", "arguments":{"requestState":"x"}}`},
		"last":    {`{"name":"pay","x":[1e2],` + state + `}`, `{"name":"pay","x":[1e2]}`},
		"answers": {`{"inputResponses":{},` + state + `,"name":"pay"}`, `{"name":"pay"}`},
		"none":    {`{"name":"pay","_meta":{}}`, `{"name":"pay","_meta":{}}`},
		"no text": {`{"requestState":{"a":1},"name":"pay"}`, `{"name":"pay"}`},
		"escaped": {`{"request\u0053tate":"s","name":"pay"}`, `{"name":"pay"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			call := func(params string) string {
				return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + params + `}`
			}
			m, err := accepted(t, call(tt.params)).WithoutRetryMembers()
			if err != nil || string(m.Raw) != call(tt.left) || m.RequestState.Present() || m.Name != "pay" {
				t.Errorf("got %s, %v", m.Raw, err)
			}
		})
	}
}

// A task id is parsed only for methods under tasks/. It must be a string.
func TestParse_TaskMethodsNeedATaskID(t *testing.T) {
	t.Parallel()
	for method, want := range map[string]string{"tasks/get": "ä", "tasks/own": "ä", "prompts/list": ""} {
		m := accepted(t, `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":{"taskId":"\u00e4"}}`)
		if m.TaskID != want || m.TaskIDValue.Present() != (want != "") {
			t.Errorf("%s: %q", method, m.TaskID)
		}
	}
	if got := codeOf(t, `{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskId":7}}`).String(); got != "CODE_PARAMS_INVALID" {
		t.Errorf("a number: %s", got)
	}
}
