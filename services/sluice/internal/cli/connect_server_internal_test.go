package cli

import (
	"bytes"
	"strings"
	"testing"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

// After a sign-in at a server, a person sees with which account she has signed in. All characters of its name are visible.
func TestPrintConnected_NamesTheAccount(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"ana@example.com": "signed in as: ana@example.com\n", "a\x1b[2J\u200bb": `signed in as: a\u001b[2J\u200bb`, "": "has not named the account"} {
		one := newConnectionRecord(&identityv1.Connection{Server: "wiki", AccountName: name, Person: &identityv1.Person{Tenant: "default", Subject: "ana"}})
		var out, errOut bytes.Buffer
		tool := newTool("sluice", &out, &errOut)
		if err := tool.printConnected(one); err != nil || !strings.Contains(out.String(), want) || strings.ContainsAny(out.String(), "\x1b\u200b") {
			t.Errorf("%q: %v, %q", name, err, out.String())
		}
		out.Reset()
		if err := tool.printConnections([]connectionRecord{one}); err != nil || !strings.Contains(out.String(), "SIGNED IN AS") || strings.ContainsAny(out.String(), "\x1b\u200b") {
			t.Errorf("%q: %v, %q", name, err, out.String())
		}
		if name == "ana@example.com" && !strings.Contains(out.String(), name) {
			t.Errorf("the table is %q", out.String())
		}
	}
}
