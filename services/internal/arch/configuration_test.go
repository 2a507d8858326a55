package arch_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"os"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/config"
)

const (
	// TestConfigurationPage writes configurationPage from configurationText. It replaces {{keys "servers.NAME."}} with a
	// table.
	configurationPage = "../../../docs/configuration.md"
	configurationText = "testdata/configuration.md.tmpl"
)

// configurationSample sets a value for each key without a default, so that [configurationWalk] visits all keys.
const configurationSample = `
auth:
  tokens: [{name: name, sha256: "HASH", role: agent}]
  issuers: [{name: name, issuer: "https://x", audiences: [x], tenants: {claim: /x, map: {x: x}}, groups: {claim: /x}, agent: {claim: /x}, people: {viewer: [x]}, sign_in: {client_id: y}}]
secrets: {commands: {name: {command: [x]}}, vault: {address: "https://x", approle: {role_id: x}}}
servers:
  name: {stdio: {command: [x]}}
  http: {http: {url: "https://x"}, credentials: {as: shared, oauth: {}}}
  grpc: {grpc: {target: "x:1"}}
hooks: [{client: codex}]
agents:
  guests: {name: {module: x, sha256: "HASH"}}
  providers: {name: {kind: openai, prices: {model: {input: "1", output: "1"}}}}
policies: [store]
approvals:
  clients: [{name: x, hold: 1m}]
  policy_changes: {quorum: 1, decide_within: 24h, execute_within: 24h}
  notify: {desktop: true, webhooks: [{name: x}], mail: {lists: [{name: x, to: [x]}]}, slack: {name: x}}
`

// configurationKey is a row of a table: the path of the key, its default or type, and its meaning.
type configurationKey struct{ path, kind, meaning string }

// TestConfigurationPage compares docs/configuration.md with the code. The tables must contain the comments, types and
// defaults of the configuration's fields, and every key must be in one table. Run the test with -update after a change.
func TestConfigurationPage(t *testing.T) {
	t.Parallel()
	var rows []configurationKey
	w := configurationWalk{t: t, docs: fieldComments(t, "internal/config"), rows: &rows}
	w.walk(reflect.ValueOf(sampleConfiguration(t)), "")
	page, err := configurationTables(rows)
	if err != nil {
		t.Fatal(err)
	}
	samePage(t, configurationPage, page, "TestConfigurationPage")
}

func TestConfigurationPage_ExamplesLoad(t *testing.T) {
	t.Parallel()
	for _, page := range []string{configurationPage, "../../../docs/servers.md", "../../../docs/identity.md", "../../../docs/identity-recipes.md"} {
		raw, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(raw, -1)
		if len(blocks) == 0 {
			t.Errorf("%s has no examples", page)
		}
		for _, block := range blocks {
			if _, err := config.Parse("sluice.yaml", block[1], noEnv); err != nil {
				t.Errorf("%s: %v, in the example\n%s", page, err, block[1])
			}
		}
	}
}

// samePage compares a document with the document that a test has generated. With -update, it writes the generated
// document instead.
func samePage(t *testing.T, file string, want []byte, test string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want) {
		t.Errorf("%s is out of date: run go test ./internal/arch -run %s -update", file, test)
	}
}

func noEnv(string) (string, bool) { return "", false }

// sampleConfiguration returns the default configuration, in which each map, and each list whose entries have several
// keys, contains one entry.
func sampleConfiguration(t *testing.T) config.File {
	t.Helper()
	text := strings.ReplaceAll(configurationSample, "HASH", strings.Repeat("0", 64))
	f, err := config.Parse("sluice.yaml", []byte(text), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	other, err := config.Parse("sluice.yaml", []byte(`secrets: {vault: {address: "https://x", kubernetes: {role: x}}}`), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	vault := &f.Secrets.Vault
	vault.Address, vault.AppRole.RoleID, vault.Kubernetes = "", "", other.Secrets.Vault.Kubernetes
	vault.Kubernetes.Role = ""
	server := f.Servers["name"]
	server.HTTP, server.Credentials, server.GRPC = f.Servers["http"].HTTP, f.Servers["http"].Credentials, f.Servers["grpc"].GRPC
	f.Auth.Tokens[0].SHA256 = ""
	f.Servers = map[string]config.Server{"name": server}
	f.Roles = map[string]config.Role{"name": {}}
	return *f
}

// fieldComments returns the comments of the fields of a package's structs. The keys have the form TYPE.FIELD.
func fieldComments(t *testing.T, dir string) map[string]string {
	t.Helper()
	comments := make(map[string]string)
	eachFile(t, parser.ParseComments|parser.SkipObjectResolution, func(file string, parsed *ast.File) {
		if path.Dir(file) != dir || isTest(file) {
			return
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if of, ok := spec.Type.(*ast.StructType); ok {
				for _, field := range of.Fields.List {
					for _, name := range field.Names {
						comments[spec.Name.Name+"."+name.Name] = strings.Join(strings.Fields(field.Doc.Text()), " ")
					}
				}
			}
			return false
		})
	})
	return comments
}

// configurationWalk collects the keys of a configuration in the order of its structs.
type configurationWalk struct {
	t    *testing.T
	docs map[string]string
	rows *[]configurationKey
}

func (w configurationWalk) walk(part reflect.Value, prefix string) {
	for field, value := range part.Fields() {
		key := field.Tag.Get("yaml")
		if key == "" {
			continue
		}
		key = prefix + key
		if value.Kind() != reflect.Struct {
			*w.rows = append(*w.rows, w.row(part.Type().Name(), field.Name, key, value))
		}
		if entry, suffix := entryOf(value); entry.Kind() == reflect.Struct {
			w.walk(entry, key+suffix+".")
		}
	}
}

// entryOf returns the first entry of a map or list, the value that a pointer refers to, or otherwise the value itself.
// It also returns the placeholder for the entry's name in a path.
func entryOf(value reflect.Value) (reflect.Value, string) {
	switch {
	case value.Kind() == reflect.Pointer:
		return value.Elem(), ""
	case value.Kind() == reflect.Slice && value.Len() > 0:
		return value.Index(0), "[]"
	case value.Kind() == reflect.Map && value.Len() > 0:
		return value.MapIndex(value.MapKeys()[0]), ".NAME"
	}
	return value, ""
}

// zeroMeans matches the sentence of a field's comment that states which default the zero value selects.
var zeroMeans = regexp.MustCompile(`(?:;|[.]) (?:0|Empty) means ([^.]+)[.]`)

// row returns the row of a field. The field's comment begins with the field's name, and ends with "Required." if the
// key is required.
func (w configurationWalk) row(of, name, key string, value reflect.Value) configurationKey {
	meaning, ok := strings.CutPrefix(w.docs[of+"."+name], name+" ")
	if !ok {
		w.t.Errorf("the comment of %s.%s must begin with its name, because it describes the key %s", of, name, key)
		return configurationKey{path: key}
	}
	for _, start := range []string{"is ", "are ", "lists ", "the ", "a "} {
		meaning = strings.TrimPrefix(meaning, start)
	}
	meaning, required := strings.CutSuffix(meaning, " Required.")
	kind, standard := kindOf(value)
	if standard != "" {
		standard = "`" + standard + "`"
	}
	if zero := zeroMeans.FindStringSubmatch(meaning); zero != nil {
		standard, meaning = zero[1], strings.Replace(meaning, zero[0], ".", 1)
	}
	if required {
		standard = "required"
	}
	return configurationKey{key, kindColumn(kind, standard), strings.ToUpper(meaning[:1]) + meaning[1:]}
}

// kindColumn returns the content of the second column: the default or "required", or otherwise the type. It omits the
// type of texts, and types that a default makes obvious.
func kindColumn(kind, standard string) string {
	switch {
	case standard == "" && kind == "text":
		return ""
	case standard == "":
		return kind
	case kind == "text", standard != "required" && !slices.Contains([]string{"list", "map", "secret", "map of secrets"}, kind):
		return standard
	}
	return kind + ": " + standard
}

// kindOf returns the name that docs/configuration.md uses for a value's type, and the value as YAML. For an empty
// string, list or map, the second result is empty.
func kindOf(value reflect.Value) (kind, standard string) {
	if value.Kind() == reflect.Pointer && value.Elem().Kind() != reflect.Struct {
		value = value.Elem()
	}
	switch v := value.Interface().(type) {
	case time.Duration:
		return "duration", durationText(v)
	case config.Size:
		return "size", v.String()
	case config.Secret:
		return "secret", value.String()
	case map[string]config.Secret:
		return "map of secrets", ""
	}
	switch value.Kind() {
	case reflect.Slice:
		return "list", ""
	case reflect.Map, reflect.Pointer:
		return "map", ""
	case reflect.String:
		return "text", value.String()
	case reflect.Bool:
		return "bool", fmt.Sprint(value)
	case reflect.Float64:
		return "number", fmt.Sprint(value)
	default:
		return "integer", fmt.Sprint(value)
	}
}

// durationText formats a duration without its zero units: 1m, not 1m0s.
func durationText(d time.Duration) string {
	text := d.String()
	if d > 0 {
		text = regexp.MustCompile(`([hm])0[ms](?:0s)?$`).ReplaceAllString(text, "$1")
	}
	return text
}

// configurationTables executes the template of docs/configuration.md. {{keys "a" "b."}} becomes a table with the key
// "a" or all keys below it, and with all keys below "b". In the rows of the latter keys, the prefix "b." is omitted.
func configurationTables(rows []configurationKey) ([]byte, error) {
	text, err := os.ReadFile(configurationText)
	if err != nil {
		return nil, err
	}
	parts := tableParts(text)
	tables := make(map[string]string)
	for _, row := range rows {
		part := partOf(row.path, parts)
		if part == "" {
			return nil, fmt.Errorf("%s has no table for %s", configurationText, row.path)
		}
		name := row.path
		if strings.HasSuffix(part, ".") {
			name = strings.TrimPrefix(name, part)
		}
		tables[part] += fmt.Sprintf("| `%s` | %s | %s |\n", name, row.kind, strings.ReplaceAll(row.meaning, "|", `\|`))
	}
	keys := func(parts ...string) (string, error) {
		out := "| key | default or type | meaning |\n|---|---|---|\n"
		for _, part := range parts {
			if tables[part] == "" {
				return "", fmt.Errorf("there are no keys in %q", part)
			}
			out += tables[part]
		}
		return strings.TrimSuffix(out, "\n"), nil
	}
	page, err := template.New("page").Funcs(template.FuncMap{"keys": keys}).Parse(string(text))
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = page.Execute(&out, nil)
	return out.Bytes(), err
}

// tableParts returns all arguments of the {{keys}} actions in the template.
func tableParts(text []byte) (parts []string) {
	for _, call := range regexp.MustCompile(`{{keys ([^}]*)}}`).FindAllSubmatch(text, -1) {
		for part := range strings.FieldsSeq(string(call[1])) {
			parts = append(parts, strings.Trim(part, `"`))
		}
	}
	return parts
}

// partOf returns the longest part that a key belongs to, or an empty string if there is none.
func partOf(key string, parts []string) (found string) {
	for _, part := range parts {
		within := key == part || strings.HasPrefix(key, strings.TrimSuffix(part, ".")+".") || strings.HasPrefix(key, part+"[")
		if within && len(part) > len(found) {
			found = part
		}
	}
	return found
}
