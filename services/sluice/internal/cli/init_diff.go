package cli

import (
	"io"
	"strings"

	"github.com/aymanbagabas/go-udiff"

	"github.com/sluice-mesh/sluice/services/internal/safetext"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientsetup"
	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
)

// printFileDiff prints the change of a file without secrets. Every character is visible, because a person decides about the
// change, and the file may come from another person. what describes the new content.
func (t *tool) printFileDiff(path, what string, hide hider, before, after []byte) {
	path = safetext.Line(path)
	diff := udiff.Unified(path, path+" ("+what+")", hide.Replace(string(before)), hide.Replace(string(after)))
	_, _ = io.WriteString(t.out, safetext.VisibleLines(diff))
}

// hideSecretsIn returns a hider of the strings in configuration files that look like secrets. A file that can't be parsed
// has none.
func hideSecretsIn(files map[configedit.Format][]byte) hider {
	var values []string
	for format, data := range files {
		if root, err := configedit.Parse(configedit.Layout{Format: format}, data); err == nil {
			values = append(values, secretsIn(root, "", false)...)
		}
	}
	return newHider(values)
}

// secretsIn returns the strings below a member that look like secrets. headers is true if its members are headers.
func secretsIn(n *configedit.Node, name string, headers bool) []string {
	switch {
	case n.Kind == configedit.String && clientsetup.IsSecret(clientconfig.Pair{Name: name, Value: n.Text}, headers):
		return []string{n.Text}
	case n.Kind == configedit.List:
		return secretsInList(n, name)
	}
	var out []string
	for _, m := range n.Members {
		out = append(out, secretsIn(m.Value, m.Name, strings.Contains(strings.ToLower(name), "headers"))...)
	}
	return out
}

// secretsInList is secretsIn for a list, which may contain the arguments of a program.
func secretsInList(n *configedit.Node, name string) []string {
	var out, words []string
	for _, item := range n.Items {
		out = append(out, secretsIn(item, name, false)...)
		if item.Kind == configedit.String {
			words = append(words, item.Text)
		}
	}
	for i := range words {
		if value := clientsetup.SecretArgument(clientconfig.Entry{Args: words[i:]}); value != "" {
			out = append(out, value)
		}
	}
	return out
}
