package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// camelCaseName matches names in the JSON output of the command line.
var camelCaseName = regexp.MustCompile(`^[a-z][a-zA-Z0-9]*$`)

// All names in the JSON output of all commands are in camel case. The output of the command call is not checked,
// because it is the server's result.
func TestCommands_PrintJSONNamesInCamelCase(t *testing.T) {
	t.Parallel()
	dir := hostileMesh(t)
	for name, text := range map[string]string{
		"good.yaml": "version: 1\nname: p\ndefault: deny\n",
		"check.yaml": "data: elsewhere\ngroups: {finance: [ana]}\npolicies: [good.yaml]\n" +
			"auth: {tokens: [{name: t, token: q7Rk2vX9pLm4Tz8WcB1nYd6HsJf3GaEu, role: viewer}]}\nservers: {raw: {http: {url: http://127.0.0.1:1/mcp}}}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	calls := hostileCalls()
	calls["version"] = nil
	configs := map[string]string{"config check": "check.yaml"} // the command prints nothing for an invalid configuration
	for name, args := range calls {
		if name == "call" || strings.HasPrefix(name, "__complete") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out, errOut bytes.Buffer
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // watches don't end
			defer cancel()
			config := filepath.Join(dir, cmp.Or(configs[name], "sluice.yaml"))
			newTool("sluice", &out, &errOut).run(ctx, append(commandLine(name, args, dir), "--config", config, "-o", "json"))
			names := 0
			dec := json.NewDecoder(&out)
			for {
				var printed any
				if err := dec.Decode(&printed); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatal(err)
				}
				for _, at := range otherNames(printed, "", &names) {
					t.Errorf("%s is not in camel case", at)
				}
			}
			// These commands print no JSON in this test. The first three print the same JSON as cancel, but fail
			// because the approval has ended. The export fails because the fake mesh has no archive. The commands that
			// change the policy fail early, because the fake mesh reports that the documents do not load. The command
			// propose fails early because the fake mesh has no calls. A test in e2e/policy checks the JSON of propose
			// and of the commands that change the policy. The command login fails because the fake mesh reports that it
			// can't reach the issuer. A test in e2e/signin checks the JSON of login.
			quiet := []string{"approvals approve", "approvals deny", "approvals resolve", "agents export", "policy apply", "policy rollback", "policy propose", "login", "connect"}
			if names == 0 && !slices.Contains(quiet, name) {
				t.Errorf("nothing was printed: %s", errOut.String())
			}
		})
	}
}

// otherNames returns the paths of names that are not in camel case. It adds the number of all names in value to *names.
func otherNames(value any, at string, names *int) (out []string) {
	switch v := value.(type) {
	case []any:
		for _, one := range v {
			out = append(out, otherNames(one, at, names)...)
		}
	case map[string]any:
		for name, one := range v {
			*names++
			if !camelCaseName.MatchString(name) {
				out = append(out, at+"."+name)
			}
			out = append(out, otherNames(one, at+"."+name, names)...)
		}
	}
	return out
}
