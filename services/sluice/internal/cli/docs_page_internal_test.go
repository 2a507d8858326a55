package cli

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/template"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

var update = flag.Bool("update", false, "write "+commandPage)

const (
	// commandPage is the page that TestCommandPage_MatchesTheCommands generates from the template commandText. The help
	// texts of the commands replace {{groups}}, {{flags}} and {{commands}} in the template.
	commandPage = "../../../../docs/cli.md"
	commandText = "testdata/cli.md.tmpl"
)

// TestCommandPage_MatchesTheCommands compares docs/cli.md with the commands. After a change to a help text, run the
// test with -update.
func TestCommandPage_MatchesTheCommands(t *testing.T) {
	t.Parallel()
	root := newTool("sluice", io.Discard, io.Discard).root()
	sections := commandSections{shown: make(map[string]string)}
	text, err := template.New("page").Funcs(template.FuncMap{
		"groups":   func() string { return groupList(root) },
		"flags":    func() string { return codeBlock(root.PersistentFlags().FlagUsagesWrapped(lineLength)) },
		"commands": func() string { return strings.TrimSpace(sections.ofGroup(root)) },
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

// isOnPage reports whether the page shows a command. It does not show hidden commands, and the commands that cobra adds.
func isOnPage(c *cobra.Command) bool {
	return c.IsAvailableCommand() && c.Name() != "help" && c.Name() != "completion"
}

// groupList returns a list of the root command's groups, with links to the sections of their commands.
func groupList(root *cobra.Command) string {
	var out strings.Builder
	list := func(title, id string) {
		words := strings.Fields(title)
		for _, c := range root.Commands() {
			if c.GroupID == id && isOnPage(c) {
				words = append(words, fmt.Sprintf("[%s](#sluice-%[1]s),", c.Name()))
			}
		}
		if id == "" {
			words = append(words, "`completion`,")
		}
		out.WriteString(listItem(strings.TrimSuffix(strings.Join(words, " "), ",")))
	}
	for _, group := range root.Groups() {
		list(group.Title, group.ID)
	}
	list("Other commands:", "")
	return strings.TrimSpace(out.String())
}

// commandSections formats the sections of commands. The field shown maps each flag that a section describes, with its
// help text, to the first command that has the flag.
type commandSections struct{ shown map[string]string }

// ofGroup returns a list of the subcommands that need no section, and a section for each other subcommand.
func (s commandSections) ofGroup(parent *cobra.Command) string {
	var list, sections strings.Builder
	for _, c := range parent.Commands() {
		switch item := listItem(summary(c)); {
		case !isOnPage(c):
		case c.HasSubCommands():
			fmt.Fprintf(&sections, "## sluice %s\n\n%s.\n\n%s", c.Name(), c.Short, s.ofGroup(c))
		case parent.HasParent() && c.Example == "" && strings.Count(item, "\n") <= 3:
			list.WriteString(item)
		default:
			sections.WriteString(s.of(c))
		}
	}
	if list.Len() > 0 {
		list.WriteByte('\n')
	}
	return list.String() + sections.String()
}

// summary returns a line with the usage, the description and the flags of a command.
func summary(c *cobra.Command) string {
	out := fmt.Sprintf("`%s`: %s", strings.TrimPrefix(usage(c), c.Parent().CommandPath()+" "), description(c))
	for line := range strings.Lines(c.LocalNonPersistentFlags().FlagUsages()) {
		flag, text, _ := strings.Cut(strings.TrimSpace(line), "   ")
		out += fmt.Sprintf(" `%s`: %s.", flag, strings.TrimSpace(text))
	}
	return out
}

func usage(c *cobra.Command) string { return strings.TrimSuffix(c.UseLine(), " [flags]") }

// description returns the help text of a command.
func description(c *cobra.Command) string {
	switch {
	case c.Name() == "stdio":
		entry := func(more string) string { return `{"command": "/path/to/sluice", "args": ["stdio"` + more + `]}` }
		return stdioText(entry(""), entry(`, "--server", "demo"`), "The command prints these entries with your paths.")
	case c.Long == "":
		return c.Short + "."
	}
	return c.Long
}

// of returns the section of a command: its description, and a code block with its usage, flags and examples.
func (s commandSections) of(c *cobra.Command) string {
	level := "##"
	if c.Parent().HasParent() {
		level = "###"
	}
	out := fmt.Sprintf("%s %s\n\n%s\n\n", level, c.CommandPath(), markdownOf(description(c)))
	block := usage(c) + "\n" + s.flags(c)
	if c.Example != "" {
		block += "\n" + strings.ReplaceAll("\n"+c.Example, "\n  sluice ", "\n$ sluice ")[1:] + "\n"
	}
	if strings.TrimSpace(block) == c.CommandPath() {
		return out
	}
	return out + "```\n" + strings.ReplaceAll(block, "\n  # ", "\n# ") + "```\n\n"
}

// flagName matches the name of a flag at the beginning of its description.
var flagName = regexp.MustCompile(`^ +(?:-\w, )?--([a-z-]+)`)

// flags returns the descriptions of a command's flags. If an earlier command has some of the flags with the same
// descriptions, flags returns the names of these flags and the earlier command instead, unless this is longer.
func (s commandSections) flags(c *cobra.Command) string {
	flags := c.LocalNonPersistentFlags()
	same := make(map[string]sameFlags)
	for line := range strings.Lines(flags.FlagUsages()) {
		key := strings.Join(strings.Fields(line), " ")
		first, ok := s.shown[key]
		if !ok {
			s.shown[key] = c.CommandPath()
			continue
		}
		same[first] = sameFlags{append(same[first].names, flagName.FindStringSubmatch(line)[1]), same[first].length + len(key)}
	}
	from, reference := "", ""
	for _, first := range slices.Sorted(maps.Keys(same)) {
		text := "      --" + strings.Join(same[first].names, ", --") + ": as for " + first + "\n"
		if len(text) < same[first].length && same[first].length > same[from].length {
			from, reference = first, text
		}
	}
	for _, name := range same[from].names {
		flags.Lookup(name).Hidden = true
	}
	return flags.FlagUsagesWrapped(lineLength) + reference
}

// sameFlags are flags that an earlier command also has, and the length of their descriptions.
type sameFlags struct {
	names  []string
	length int
}

// markdownOf converts a help text to Markdown. It wraps the paragraphs, and formats indented paragraphs as code.
func markdownOf(help string) string {
	parts := strings.Split(help, "\n\n")
	for i, part := range parts {
		if strings.HasPrefix(part, "  ") {
			parts[i] = codeBlock(part)
			continue
		}
		parts[i] = wrapWords(strings.Fields(part), lineLength)
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

// listItem returns an item of a Markdown list.
func listItem(text string) string {
	return "* " + strings.ReplaceAll(wrapWords(strings.Fields(text), lineLength-2), "\n", "\n  ") + "\n"
}

func wrapWords(words []string, width int) string {
	var out strings.Builder
	used := 0
	for _, word := range words {
		n := utf8.RuneCountInString(word)
		switch {
		case used == 0:
		case used+1+n > width:
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
