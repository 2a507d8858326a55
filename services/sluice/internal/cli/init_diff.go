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

// printFileDiff prints the change to a file and hides secrets. It makes every character visible, because a person
// decides on the change, and the file may come from another person. The label describes the new content.
func (t *tool) printFileDiff(path, label string, hide hider, before, after []byte) {
	path = safetext.Line(path)
	diff := udiff.Unified(path, path+" ("+label+")", hide.Replace(string(before)), hide.Replace(string(after)))
	_, _ = io.WriteString(t.out, safetext.VisibleLines(diff))
}

// hideSecretsIn returns a hider for the strings in configuration files that look like secrets. It skips files that
// can't be parsed.
func hideSecretsIn(files map[configedit.Format][]byte) hider {
	var values []string
	for format, data := range files {
		if root, err := configedit.Parse(configedit.Layout{Format: format}, data); err == nil {
			values = append(values, secretsIn(root, "", false)...)
		}
	}
	return newHider(values)
}

// secretsIn returns the strings in a value that look like secrets. The parameter name is the name of the member with
// this value. The parameter headers is true if the member is an HTTP header.
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

// secretsInList is like secretsIn, but the value is a list, which may contain the arguments of a program.
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
