package cli

import (
	"errors"
	"io"
	"strings"
	"testing"
)

// A flag with invalid JSON is a usage error that contains the flag's name and the position of the error.
func TestFlags_BrokenJSONIsAUsageError(t *testing.T) {
	t.Parallel()
	commands := map[string][]string{
		"--params": {"policy", "explain", "--server", "demo", "--tool", "safe", "--params"},
		"--args":   {"call", "demo", "safe", "--args"},
	}
	for raw, want := range map[string]string{
		`{"a":}`:           ` is not JSON: `,
		`{"a":[1,tru]}`:    ` within "/a/1" after offset 11`,
		`{"a":1`:           `unexpected EOF after offset 6`,
		`{"a":1} x`:        `after offset 8`,
		`{"a":1,"a":2}`:    `duplicate object member name "a"`,
		"{\"a\":\"\xff\"}": `invalid UTF-8 within "/a" after offset 6`,
		`[1]`:              ` is not a JSON object`,
		` `:                `unexpected EOF`,
	} {
		for flag, command := range commands {
			root := (&tool{self: "sluice", out: io.Discard, errOut: io.Discard}).root()
			root.SetArgs(append(command, raw))
			err := root.ExecuteContext(t.Context())
			if _, ok := errors.AsType[usageError](err); !ok || !strings.HasPrefix(err.Error(), flag+" ") || !strings.Contains(err.Error(), want) {
				t.Errorf("%s %q: %v, want %q", flag, raw, err, want)
			}
		}
	}
}
