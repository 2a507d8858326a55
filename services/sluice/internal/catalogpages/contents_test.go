package catalogpages_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/policy"
	"github.com/sluice-mesh/sluice/services/sluice/internal/catalogpages"
)

// renamedFields maps field names of sluice.policy.v1 to their names in the JSON document, if the names differ.
var renamedFields = map[string]string{"definitionJson": "definition"}

func TestJSON_HasAllFieldsOfTheContract(t *testing.T) {
	t.Parallel()
	server, tool := new(policyv1.CatalogServer), new(policyv1.CatalogTool)
	fillMessage(server.ProtoReflect())
	fillMessage(tool.ProtoReflect())
	tool.Server, tool.DefinitionJson = server.GetName(), `{"name":"a"}`
	var got struct {
		Servers []jsontext.Value `json:"servers"`
		Tools   []jsontext.Value `json:"tools"`
	}
	if err := json.Unmarshal([]byte(writeJSON(t, catalogpages.Catalogue{Servers: []*policyv1.CatalogServer{server}, Tools: []*policyv1.CatalogTool{tool}})), &got); err != nil {
		t.Fatal(err)
	}
	compareFields(t, "", server.ProtoReflect().Descriptor(), got.Servers[0])
	compareFields(t, "", tool.ProtoReflect().Descriptor(), got.Tools[0])
}

func fillMessage(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		one := func() protoreflect.Value {
			switch fd.Kind() {
			case protoreflect.MessageKind:
				v := m.NewField(fd)
				if fd.IsList() {
					v = v.List().NewElement()
				}
				fillMessage(v.Message())
				return v
			case protoreflect.BoolKind:
				return protoreflect.ValueOfBool(true)
			case protoreflect.EnumKind:
				return protoreflect.ValueOfEnum(1)
			case protoreflect.BytesKind:
				return protoreflect.ValueOfBytes([]byte{1})
			case protoreflect.DoubleKind:
				return protoreflect.ValueOfFloat64(0.5)
			case protoreflect.Int32Kind:
				return protoreflect.ValueOfInt32(1)
			case protoreflect.Int64Kind:
				return protoreflect.ValueOfInt64(1)
			default:
				return protoreflect.ValueOfString("a")
			}
		}
		if fd.IsList() {
			m.Mutable(fd).List().Append(one())
			continue
		}
		m.Set(fd, one())
	}
}

// compareFields fails the test if a JSON object lacks fields of a message.
func compareFields(t *testing.T, at string, md protoreflect.MessageDescriptor, text jsontext.Value) {
	t.Helper()
	var object map[string]jsontext.Value
	if err := json.Unmarshal(text, &object); err != nil {
		t.Fatalf("%s: %v", at, err)
	}
	fields := md.Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		name := fd.JSONName()
		if other, ok := renamedFields[name]; ok {
			name = other
		}
		value, ok := object[name]
		switch {
		case !ok:
			t.Errorf("%s/%s is missing", at, name)
		case fd.Message() == nil || fd.Message().FullName() == "google.protobuf.Timestamp":
		case fd.IsList():
			var list []jsontext.Value
			if err := json.Unmarshal(value, &list); err != nil || len(list) != 1 {
				t.Fatalf("%s/%s: %d, %v", at, name, len(list), err)
			}
			compareFields(t, at+"/"+name, fd.Message(), list[0])
		default:
			compareFields(t, at+"/"+name, fd.Message(), value)
		}
	}
}

// The policy rules on the pages load unchanged and name the page's tool, even if YAML would parse the tool's name as
// another type.
func TestPages_RecommendedRulesLoad(t *testing.T) {
	t.Parallel()
	names := []string{"wasm_agent_export", "no", "null", "123", "a.b/c-d", "-x", strings.Repeat("x", 128)}
	c := catalogOf(names...)
	dir := writeSite(t, c)
	found := 0
	for _, file := range filesIn(t, dir) {
		if !strings.HasPrefix(file, "tool/") {
			continue
		}
		for n := range parse(t, dir, file).Descendants() {
			if n.DataAtom != atom.Pre || attribute(n.Parent, "class") != "rule" {
				continue
			}
			found++
			for _, finding := range policy.Lint([]*policyv1.Document{{Path: "shown.yaml", Text: rawText(n)}}) {
				t.Errorf("%s: %s in\n%s", file, finding.GetMessage(), rawText(n))
			}
		}
	}
	if want := 2 * len(names); found != want {
		t.Errorf("%d rules, want %d", found, want)
	}
}

// If no policy document can name a tool, the tool's page explains this instead of showing a rule that would not load.
func TestPages_ToolThatNoRuleCanNameHasNoRule(t *testing.T) {
	t.Parallel()
	dir := writeSite(t, catalogOf("Ünnamed tool"))
	for _, file := range filesIn(t, dir) {
		if !strings.HasPrefix(file, "tool/") {
			continue
		}
		text := textOf(parse(t, dir, file))
		if strings.Contains(text, "rate_limit: {") || strings.Count(text, "A policy document can't name this tool, because a name under tools has 1 to 128 letters") != 2 {
			t.Errorf("the page says %s", text)
		}
	}
}

// The page of an unclassified tool explains that nothing is known about the tool, and assumes the worst.
func TestPages_UnclassifiedToolCountsAsWorst(t *testing.T) {
	t.Parallel()
	dir := writeSite(t, catalogOf("a"))
	text := textOf(withSpaces(body(t, parse(t, dir, "tool", "files", "a.html"))))
	checkOrder(t, "a", text, []string{
		"The server gives no description.", "Not classified", "Not classified", "0, 0 required", "Nothing is known about the newest definition", "It is unclear what this tool does",
		"No list contains this tool any longer", "It is not known what a does on files.", "Nothing in the definition says what the tool does.", "The catalogue knows of none.",
		"The catalog recommends no rule for it.", "tool of unknown risk", "It takes no parameters.", "None is known.", "It is not known.", "0.00, unsure", "not judged",
	})
}

func TestExport_DoesNotChangeTheCatalog(t *testing.T) {
	t.Parallel()
	c, before := goldenCatalog(t), goldenCatalog(t)
	writeSite(t, c)
	writeMarkdown(t, c)
	writeJSON(t, c)
	for i := range c.Tools {
		if !proto.Equal(c.Tools[i], before.Tools[i]) {
			t.Errorf("tool %d was changed", i)
		}
	}
	for i := range c.Servers {
		if !proto.Equal(c.Servers[i], before.Servers[i]) {
			t.Errorf("server %d was changed", i)
		}
	}
}

func TestHTML_LongListsHaveSeveralPages(t *testing.T) {
	t.Parallel()
	var names []string
	for i := range 1001 {
		names = append(names, strings.Repeat("a", 1+i%90)+strings.Repeat("b", i/90))
	}
	dir := writeSite(t, catalogOf(names...))
	seen := 0
	for i, file := range []string{"files.html", "files~2.html", "files~3.html"} {
		page := parse(t, dir, "server", file)
		seen += len(regexp.MustCompile(`class="row"`).FindAllString(read(t, dir, "server", file), -1))
		links := 0
		for n := range page.Descendants() {
			if n.Type == html.ElementNode && n.DataAtom == atom.A && strings.HasPrefix(attribute(n, "href"), "files") {
				links++
			}
		}
		if links != 2 {
			t.Errorf("page %d leads to %d others", i+1, links)
		}
	}
	if seen != 1001 {
		t.Errorf("%d tools are listed", seen)
	}
}
