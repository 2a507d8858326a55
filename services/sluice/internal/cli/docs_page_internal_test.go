package cli

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"text/template"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

var update = flag.Bool("update", false, "write "+commandPage)

const (
	// commandPage is the page that TestCommandPage_MatchesTheCommands generates from the template commandText. The help
	// texts of the commands replace {{flags}} and {{commands}} in the template.
	commandPage = "../../../../docs/cli.md"
	commandText = "testdata/cli.md.tmpl"
)

// TestCommandPage_MatchesTheCommands compares docs/cli.md with the commands. After a change to a help text, run the
// test with -update.
func TestCommandPage_MatchesTheCommands(t *testing.T) {
	t.Parallel()
	root := newTool("sluice", io.Discard, io.Discard).root()
	text, err := template.New("page").Funcs(template.FuncMap{
		"flags":    func() string { return codeBlock(root.PersistentFlags().FlagUsagesWrapped(lineLength)) },
		"commands": func() string { return strings.TrimSpace(commandSections(root)) },
	}).ParseFiles(commandText)
	if err != nil {
		t.Fatal(err)
	}
	var want bytes.Buffer
	if err := text.ExecuteTemplate(&want, "cli.md.tmpl", nil); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(commandPage, want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(commandPage)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want.Bytes()) {
		t.Errorf("%s is out of date: run go test ./sluice/internal/cli -run TestCommandPage -update", commandPage)
	}
}

// commandSections returns a section for each subcommand of a command. It omits hidden commands, and the commands that
// cobra adds.
func commandSections(parent *cobra.Command) string {
	var out strings.Builder
	for _, c := range parent.Commands() {
		switch {
		case !c.IsAvailableCommand() || c.Name() == "help" || c.Name() == "completion":
		case c.HasSubCommands():
			fmt.Fprintf(&out, "## sluice %s\n\n%s.\n\n%s", c.Name(), c.Short, commandSections(c))
		default:
			out.WriteString(commandSection(c))
		}
	}
	return out.String()
}

// commandSection returns the usage, the description, the examples and the flags of a command.
func commandSection(c *cobra.Command) string {
	level := "##"
	if c.Parent().HasParent() {
		level = "###"
	}
	description := c.Long
	switch {
	case c.Name() == "stdio":
		entry := func(more string) string { return `{"command": "/path/to/sluice", "args": ["stdio"` + more + `]}` }
		description = stdioText(entry(""), entry(`, "--server", "demo"`), "The command prints these entries with your paths.")
	case description == "":
		description = c.Short + "."
	}
	usage := strings.TrimSuffix(c.UseLine(), " [flags]")
	if c.HasAvailableLocalFlags() {
		usage += " [flags]"
	}
	out := fmt.Sprintf("%s %s\n\n```\n%s\n```\n\n%s\n", level, c.CommandPath(), usage, markdownOf(description))
	if c.Example != "" {
		out += "\nExamples:\n\n" + codeBlock(c.Example) + "\n"
	}
	if flags := c.LocalNonPersistentFlags(); flags.HasAvailableFlags() {
		out += "\n" + codeBlock(flags.FlagUsagesWrapped(lineLength)) + "\n"
	}
	return out + "\n"
}

// markdownOf converts a help text to Markdown. It wraps the paragraphs, and formats indented paragraphs as code.
func markdownOf(help string) string {
	parts := strings.Split(help, "\n\n")
	for i, part := range parts {
		if strings.HasPrefix(part, "  ") {
			parts[i] = codeBlock(part)
			continue
		}
		parts[i] = wrapWords(strings.Fields(part))
	}
	return strings.Join(parts, "\n\n")
}

// codeBlock returns a string as a Markdown code block. It removes an indentation of two spaces.
func codeBlock(text string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimPrefix(line, "  ")
	}
	return "```\n" + strings.Join(lines, "\n") + "\n```"
}

const lineLength = 120

func wrapWords(words []string) string {
	var out strings.Builder
	used := 0
	for _, word := range words {
		n := utf8.RuneCountInString(word)
		switch {
		case used == 0:
		case used+1+n > lineLength:
			out.WriteByte('\n')
			used = 0
		default:
			out.WriteByte(' ')
			used++
		}
		out.WriteString(word)
		used += n
	}
	return out.String()
}
