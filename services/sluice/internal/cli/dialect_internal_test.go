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

// dialect is how names are written in what the command line prints as JSON.
var dialect = regexp.MustCompile(`^[a-z][a-zA-Z0-9]*$`)

// Whatever is printed as JSON has names of one dialect, with every field that a mesh can
// fill; what a server says in the answer to a call is the server's.
func TestEveryCommandPrintsOneDialect(t *testing.T) {
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
	configs := map[string]string{"config check": "check.yaml"} // what is broken prints nothing
	for name, args := range calls {
		if name == "call" || strings.HasPrefix(name, "__complete") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out, errOut bytes.Buffer
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // a watch has no end
			defer cancel()
			config := filepath.Join(dir, cmp.Or(configs[name], "sluice.yaml"))
			newTool("sluice", &out, &errOut).run(ctx, append(lineOf(name, args, dir), "--config", config, "-o", "json"))
			names := 0
			dec := json.NewDecoder(&out)
			for {
				var printed any
				if err := dec.Decode(&printed); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatal(err)
				}
				for _, at := range foreign(printed, "", &names) {
					t.Errorf("%s is in another dialect", at)
				}
			}
			// These print as cancel does, and what they are told of is over; an archive has to be whole.
			quiet := []string{"approvals approve", "approvals deny", "approvals resolve", "agents export"}
			if names == 0 && !slices.Contains(quiet, name) {
				t.Errorf("nothing was printed: %s", errOut.String())
			}
		})
	}
}

// foreign returns where names stand that are of another dialect, and counts all.
func foreign(value any, at string, names *int) (out []string) {
	switch v := value.(type) {
	case []any:
		for _, one := range v {
			out = append(out, foreign(one, at, names)...)
		}
	case map[string]any:
		for name, one := range v {
			*names++
			if !dialect.MatchString(name) {
				out = append(out, at+"."+name)
			}
			out = append(out, foreign(one, at+"."+name, names)...)
		}
	}
	return out
}
