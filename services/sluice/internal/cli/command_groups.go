package cli

import (
	"slices"

	"github.com/spf13/cobra"
)

// commandGroups are the groups of commands in the help of the root command.
var commandGroups = []struct {
	title    string
	commands []string
}{
	{"Put clients behind a mesh:", []string{"init", "hook", "service", "stdio"}},
	{"Run a mesh:", []string{"up", "config", "certs", "setup", "status", "doctor"}},
	{"Call tools:", []string{"tools", "call", "agents"}},
	{"Control calls:", []string{"policy", "catalog", "approvals", "stop", "resume"}},
	{"Read records:", []string{"decisions", "report", "journal"}},
	{"Manage access:", []string{"token", "identity", "login", "logout", "whoami", "connect", "disconnect", "connections"}},
}

// groupCommands assigns the subcommands of the root command to the groups. Cobra lists other commands last.
func groupCommands(root *cobra.Command) {
	for _, group := range commandGroups {
		root.AddGroup(&cobra.Group{ID: group.title, Title: group.title})
		for _, c := range root.Commands() {
			if slices.Contains(group.commands, c.Name()) {
				c.GroupID = group.title
			}
		}
	}
}
