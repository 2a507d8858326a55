package jsonrpc_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
)

var refs = []struct{ ref, kind, name, uri, code string }{
	{`{"type":"ref/prompt","name":"p\u0061"}`, jsonrpc.RefPrompt, "pa", "", ""},
	{`{"type":"ref\/resource","uri":"x:{a}"}`, jsonrpc.RefResource, "", "x:{a}", ""},
	{`{"name":"","type":"ref/prompt","title":"t"}`, jsonrpc.RefPrompt, "", "", ""},
	{`{"type":"ref/prompt","name":"p","uri":"x:a"}`, "", "", "", ""},
	{`{"type":"ref/resource","uri":"x:a","name":"p"}`, "", "", "", ""},
	{`{"type":"ref/resource","name":"p"}`, "", "", "", ""},
	{`{"type":"ref/prompt","uri":"x:a"}`, "", "", "", ""},
	{`{"type":"ref/prompt","name":7}`, "", "", "", ""},
	{`{"type":"ref/tool","name":"t"}`, "", "", "", ""},
	{`{"type":["ref/prompt"],"name":"t"}`, "", "", "", ""},
	{`{"type":"ref/prompt","name":"` + strings.Repeat("n", 4097) + `"}`, "", "", "", ""},
	{`{"name":"p"}`, "", "", "", ""},
	{`{}`, "", "", "", ""},
	{`null`, "", "", "", ""},
	{`"ref/prompt"`, "", "", "", ""},
	{`{"type":"ref/prompt","name":"p","Name":"q"}`, "", "", "", "field_case_variant"},
	{`{"type":"ref/resource","uri":"x:a","UR\u0130":"x:b"}`, "", "", "", "field_case_variant"},
	{`{"type":"ref/prompt","name":"p","name":"q"}`, "", "", "", "json_duplicate_key"},
}

func TestParse_ReadsCompletionReferences(t *testing.T) {
	t.Parallel()
	for _, tt := range refs {
		for _, order := range []string{`"method":"completion/complete","params":{"ref":%}`, `"params":{"ref":%},"method":"completion/complete"`} {
			m, err := jsonrpc.Parse([]byte(`{"jsonrpc":"2.0","id":1,`+strings.Replace(order, "%", tt.ref, 1)+`}`), jsonrpc.DefaultLimits())
			switch {
			case tt.code != "":
				if err == nil || !strings.Contains(err.Error(), tt.code) {
					t.Errorf("%s: %v, want %s", tt.ref, err, tt.code)
				}
			case err != nil:
				t.Errorf("%s: %v", tt.ref, err)
			case m.Ref != tt.kind || m.Name != tt.name || m.URI != tt.uri:
				t.Errorf("%s is read as %q, the prompt %q, the URI %q", tt.ref, m.Ref, m.Name, m.URI)
			}
		}
		if m, err := jsonrpc.Parse([]byte(`{"jsonrpc":"2.0","id":1,"method":"vendor/x","params":{"ref":`+tt.ref+`}}`), jsonrpc.DefaultLimits()); err == nil && (m.Ref != "" || m.Name != "" || m.URI != "") {
			t.Errorf("of another method %s is read as %q", tt.ref, m.Ref)
		}
	}
}

func TestListing_HidesElementsOfOtherLists(t *testing.T) {
	t.Parallel()
	read := func(text string) *jsonrpc.Answer {
		t.Helper()
		a, err := jsonrpc.ReadAnswer([]byte(text), jsonrpc.AnswerLimits())
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	a := read(`{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"t"}],"resources":[{"uri":"a","_meta":{"dev.sluice/x":1}},{"uri":"b"}],"_meta":{"dev.sluice/y":1}}}`)
	list, err := a.Listing("resources", "uri")
	if err != nil || len(list.Tools) != 2 || list.Tools[0].Name != "a" || list.Tools[1].Name != "b" {
		t.Fatalf("%+v, %v", list, err)
	}
	for hidden, want := range map[string]string{
		"":  `{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"t"}],"resources":[{"uri":"a","_meta":{}},{"uri":"b"}],"_meta":{}}}`,
		"a": `{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"t"}],"resources":[{"uri":"b"}],"_meta":{}}}`,
		"b": `{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"t"}],"resources":[{"uri":"a","_meta":{}}],"_meta":{}}}`,
	} {
		got, err := jsonrpc.ApplyEdits(list.Raw, list.Clean(func(e jsonrpc.Tool) bool { return e.Name == hidden })...)
		if err != nil || string(got) != want {
			t.Errorf("without %q: %s, %v", hidden, got, err)
		}
	}
	if len(a.Tools) != 1 || a.Tools[0].Name != "t" {
		t.Errorf("the answer itself lists %+v", a.Tools)
	}
	for _, text := range []string{`{"jsonrpc":"2.0","id":1,"result":{}}`, `{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":""}}`, `{"jsonrpc":"2.0","id":1,"result":{"resources":{"uri":"a"}}}`} {
		if list, err := read(text).Listing("resources", "uri"); err != nil || list.ToolList.Present() || list.Tools != nil {
			t.Errorf("%s: %+v, %v", text, list, err)
		}
	}
	for _, text := range []string{`{"jsonrpc":"2.0","id":1,"result":{"re\u017fources":[{"uri":"a"}]}}`, `{"jsonrpc":"2.0","id":1,"result":{"resources":[` + strings.Repeat("1,", 10_000) + `1]}}`} {
		if list, err := read(text).Listing("resources", "uri"); err == nil {
			t.Errorf("%.80s: %+v", text, list)
		}
	}
}

// FuzzListing uses another parser to check that Clean removes only the hidden elements.
func FuzzListing(f *testing.F) {
	for _, text := range []string{
		`[{"name":"a"},{"name":"b"}]`, `[ {"title":"\u0061","name":"\u0061"} , 1,[], {"name":"b","_meta":{"dev.sluice/x":1}} ]`, `[]`, `{}`, `[{"Name":"a","name":"b"}]`, `[{"name":null}]`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := jsonrpc.ReadAnswer([]byte(`{"jsonrpc":"2.0","id":1,"result":{"x":[],"prompts":`+text+`}}`), jsonrpc.AnswerLimits())
		if err != nil {
			return
		}
		list, err := a.Listing("prompts", "name")
		if err != nil || !list.ToolList.Present() {
			return
		}
		hides := func(e jsonrpc.Tool) bool { return e.Name == "" || e.Name == "a" }
		shown := 0
		for _, e := range list.Tools {
			if !hides(e) {
				shown++
			}
		}
		raw, err := jsonrpc.ApplyEdits(list.Raw, list.Clean(hides)...)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		var got struct {
			Result struct{ Prompts []map[string]json.RawMessage }
		}
		if err := json.Unmarshal(raw, &got); err != nil {
			t.Fatalf("%s became %s: %v", text, raw, err)
		}
		if len(got.Result.Prompts) != shown {
			t.Fatalf("%s became %s, with %d of %d", text, raw, len(got.Result.Prompts), shown)
		}
		for _, prompt := range got.Result.Prompts {
			var name string
			if err := json.Unmarshal(prompt["name"], &name); err != nil || name == "" || name == "a" {
				t.Fatalf("%s became %s", text, raw)
			}
		}
	})
}
