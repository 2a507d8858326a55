package cli

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientsetup"
)

// codeVariables matches the names of environment variables that change which code a program runs.
var codeVariables = regexp.MustCompile(`(?i)^(PATH|ENV|BASH_ENV|SHELLOPTS|BASHOPTS|PROMPT_COMMAND|IFS|NODE_(OPTIONS|PATH|REPL_.*)|LD_.*|DYLD_.*|GCONV_PATH|` +
	`PYTHON.*|RUBY(OPT|LIB|SHELL)|PERL5.*|PERLLIB|(_?JAVA|JDK_JAVA)_(TOOL_)?OPTIONS|CLASSPATH|DOTNET_STARTUP_HOOKS|CORECLR_.*|` +
	`NPM_CONFIG_.*|BUN_.*|DENO_.*|UV_.*|PIP_.*|GIT_.*|SSH_ASKPASS|EDITOR|VISUAL|PAGER|COMSPEC|PATHEXT)$`)

// definitionDetails returns lines that describe how a server is started or reached. It omits the command, the URL and
// the values of secrets. The parameter variables contains the variables that the entry uses from the person's
// environment.
func definitionDetails(d clientsetup.Definition, variables []string) []string {
	var out []string
	if d.Dir != "" {
		out = append(out, "runs in "+d.Dir)
	}
	var names []string
	for _, v := range d.Env {
		switch {
		case !codeVariables.MatchString(v.Name):
			names = append(names, v.Name)
		case v.Secret:
			out = append(out, "changes which code runs: "+v.Name)
		default:
			out = append(out, "changes which code runs: "+shellWords(v.Name+"="+v.Value))
		}
	}
	if len(names) > 0 {
		out = append(out, "environment: "+strings.Join(names, ", "))
	}
	if len(d.Headers) > 0 {
		names = nil
		for _, h := range d.Headers {
			names = append(names, h.Name)
		}
		out = append(out, "headers: "+strings.Join(names, ", "))
	}
	if len(variables) > 0 {
		out = append(out, "uses from your environment: "+strings.Join(variables, ", "))
	}
	return out
}

// askForVariables asks the person whether new servers in project files may get values from the person's environment. It
// asks separately for each server, because a project file may come from another person. If the person does not agree,
// the server is removed from the plan.
func (s *setup) askForVariables(ctx context.Context) {
	for _, server := range s.plan.New() {
		entry, variables := s.projectVariables(server.Name)
		if len(variables) == 0 {
			continue
		}
		to := "the program `" + shellWords(server.Command...) + "`"
		if server.URL != "" {
			to = withoutQuery(server.URL)
		}
		question := fmt.Sprintf("%s, from a file of the project, gives %s the values of these variables of your environment: %s. Allow it?", entry.Name, to, strings.Join(variables, ", "))
		if !isInteractive(false) || s.confirm(ctx, false, question) != nil {
			s.plan.Leave(server.Name, "would get "+strings.Join(variables, ", ")+" of your environment, which you did not allow")
		}
	}
}

// projectVariables returns those variables from the person's environment that a server would get only because entries
// in project files refer to them. It also returns one of these entries.
func (s *setup) projectVariables(server string) (entry clientconfig.Entry, variables []string) {
	for _, w := range s.plan.Wraps {
		if w.Server != server {
			continue
		}
		if w.Entry.Scope != clientconfig.Project {
			return entry, nil // the person's own file has the same server
		}
		for _, name := range w.Entry.Variables {
			if !clientsetup.IsPublicVariable(name) && s.system.Getenv(name) != "" {
				entry, variables = w.Entry, append(variables, name)
			}
		}
	}
	slices.Sort(variables)
	return entry, slices.Compact(variables)
}

// startQuestion returns the question that asks whether to start the new servers. The parameter how describes how they
// are started.
func startQuestion(servers []clientsetup.Server, how string) string {
	urls := 0
	for _, server := range servers {
		if server.URL != "" {
			urls++
		}
	}
	var what []string
	if programs := len(servers) - urls; programs > 0 {
		what = append(what, fmt.Sprintf("starts %d program(s)", programs))
	}
	if urls > 0 {
		what = append(what, fmt.Sprintf("connects to %d URL(s)", urls))
	}
	return "To compare them, init " + cmp.Or(strings.Join(what, " and "), "starts nothing") + ", " + how + ". Continue?"
}
