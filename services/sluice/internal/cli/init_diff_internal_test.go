package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientsetup"
	"github.com/sluice-mesh/sluice/services/sluice/internal/hooksetup"
	"github.com/sluice-mesh/sluice/services/sluice/internal/personal"
)

// A project's file has comments with invisible characters and with characters that control a terminal. The printed
// change shows all of them as escapes.
func TestPrintChanges_ShowsEveryCharacter(t *testing.T) {
	t.Parallel()
	const comment = "// \x1b[2K\x1b[1A\r\u202e\u2800\u3164\tx\n"
	const want = "// \\u001b[2K\\u001b[1A\\u000d\\u202e\\u2800\\u3164    x\n"
	for name, printChanges := range map[string]func(*setup, clientsetup.Change){
		"own mesh": func(s *setup, c clientsetup.Change) { s.changes = []clientsetup.Change{c}; s.printChanges(nil) },
		"elsewhere": func(s *setup, c clientsetup.Change) {
			s.changes = []clientsetup.Change{c}
			(&elsewhereSetup{setup: s}).printChanges()
		},
		"hook": func(s *setup, c clientsetup.Change) {
			h := &hookTarget{setup: s, Target: hooksetup.Target{Path: c.File.Path}}
			h.printPreview([2][]byte{c.Before, c.After}, [2][]byte{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			s := &setup{tool: newTool("sluice", &out, &out), plan: &clientsetup.Plan{}}
			c := clientsetup.Change{File: clientconfig.File{Path: "/p/.mcp.json"}, Before: []byte(comment + "{}\n"), After: []byte(comment + "{ }\n")}
			printChanges(s, c)
			if !strings.Contains(out.String(), want) {
				t.Errorf("the output is %q", out.String())
			}
		})
	}
}

// The person's settings and configuration have secrets next to the changed lines. The preview hides these secrets.
func TestPrintPreview_HidesSecrets(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	h := &hookTarget{
		setup:  &setup{tool: newTool("sluice", &out, &out), paths: personal.Paths{Config: "/c/sluice.yaml"}},
		Target: hooksetup.Target{Path: "/h/settings.json"},
	}
	const settings = `{"env": {"API_KEY": "correct-horse", "MODE": "plain"}, "mcpServers": {"a": {"command": "x", "args": ["-v", "--token", "battery-staple", "--key=another-one"],
		"headers": {"X-Mine": "header-value"}}}}` + "\n"
	const config = "servers: {a: {stdio: {env: {DB_PASSWORD: sesame-open}}}}\n"
	h.printPreview([2][]byte{[]byte(settings), []byte(settings + "\n")}, [2][]byte{[]byte(config), []byte(config + "hooks: []\n")})
	for _, secret := range []string{"correct-horse", "battery-staple", "another-one", "header-value", "sesame-open"} {
		if strings.Contains(out.String(), secret) {
			t.Errorf("the output contains %s", secret)
		}
	}
	for _, shown := range []string{`"MODE": "plain"`, "+hooks: []", "/h/settings.json (new)"} {
		if !strings.Contains(out.String(), shown) {
			t.Errorf("the output does not contain %s:\n%s", shown, out.String())
		}
	}
}
