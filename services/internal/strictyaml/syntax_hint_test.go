package strictyaml_test

import (
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
)

// Text that is not YAML may contain a secret at any position. The message does not contain the secret.
func TestParse_SuggestsACorrectionWithoutQuotingTheText(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"a:\n\tb: hunter2":                  "f.yaml:2:1: is not YAML: while scanning for the next token, found character that cannot start any token; indent with spaces, not with tabs",
		"a: @hunter2":                       "f.yaml:1:4: is not YAML: while scanning for the next token, found character that cannot start any token; put a value that begins with @ in quotes",
		"a: *_hunter2":                      "f.yaml:1:4: anchors and aliases are not supported; put a value that begins with * in quotes",
		"a: *":                              "f.yaml:1:5: is not YAML: while scanning an alias, did not find expected alphabetic or numeric character; put a value that begins with * in quotes",
		"a: b: hunter2":                     `f.yaml:1:5: is not YAML: mapping values are not allowed in this context; write a space after the colon of a key, and put a value that contains ": " in quotes`,
		"a: 'hunter2":                       "f.yaml:1:12: is not YAML: while scanning a quoted scalar, found unexpected end of stream; close the quotes that open in line 1",
		"a: 'b == 'hunter2''":               `f.yaml:1:11: is not YAML: while parsing a block mapping, did not find expected key; a value ends at its closing quote: put the whole value in quotes of the other kind, for example 'args.region == "eu"'`,
		"a:\n  [b, hunter2\nc: d":           "f.yaml:3:2: is not YAML: while parsing a flow sequence, did not find expected ',' or ']'; close the [ in line 2, or put a value that contains [ ] { } or , in quotes",
		"a: {b: c[\"hunter2\"]}":            "f.yaml:1:9: is not YAML: while parsing a flow mapping, did not find expected ',' or '}'; close the { in line 1, or put a value that contains [ ] { } or , in quotes",
		"a:\n  b: hunter2\n c: d":           "f.yaml:3:2: is not YAML: while parsing a block mapping, did not find expected key; indent all keys of a mapping, and all items of a list, by the same number of spaces",
		"\ufeffa:\r\n\tb: hunter2\r\n":      "f.yaml:2:1: is not YAML: while scanning for the next token, found character that cannot start any token; indent with spaces, not with tabs",
		"a: 日本 \"hunter2\": [b, \"c\" d]\n": `f.yaml:1:16: is not YAML: mapping values are not allowed in this context; write a space after the colon of a key, and put a value that contains ": " in quotes`,
	} {
		_, err := strictyaml.Parse("f.yaml", []byte(text))
		if err == nil || err.Error() != want {
			t.Errorf("Parse(%q) =\n%v\nwant\n%s", text, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("Parse(%q) quotes the text: %v", text, err)
		}
	}
}
