package cli

import (
	"slices"
	"testing"

	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientsetup"
)

func TestDefinitionDetails_NameWhatChangesTheServer(t *testing.T) {
	t.Parallel()
	program := clientsetup.Definition{Command: []string{"x"}, Dir: "/srv", Env: []clientsetup.Setting{
		{Name: "API_KEY", Value: "k3y", Secret: true}, {Name: "LEVEL", Value: "1"}, {Name: "node_options", Value: "--require ./a.js"}, {Name: "PYTHONPATH", Value: "s3cret", Secret: true},
	}}
	want := []string{"runs in /srv", "changes which code runs: 'node_options=--require ./a.js'", "changes which code runs: PYTHONPATH", "environment: API_KEY, LEVEL", "uses from your environment: TOKEN"}
	if got := definitionDetails(program, []string{"TOKEN"}); !slices.Equal(got, want) {
		t.Errorf("the details of a program are %q, want %q", got, want)
	}
	url := clientsetup.Definition{URL: "https://x", Headers: []clientsetup.Setting{{Name: "Authorization", Value: "k3y", Secret: true}}}
	if got, want := definitionDetails(url, nil), []string{"headers: Authorization"}; !slices.Equal(got, want) {
		t.Errorf("the details of a URL are %q, want %q", got, want)
	}
	for _, name := range []string{"NODE_OPTIONS", "LD_PRELOAD", "DYLD_INSERT_LIBRARIES", "PYTHONSTARTUP", "PATH", "Path", "RUBYOPT", "PERL5OPT", "BASH_ENV", "JAVA_TOOL_OPTIONS", "npm_config_registry"} {
		if !codeVariables.MatchString(name) {
			t.Errorf("%s counts as a variable that does not change the code", name)
		}
	}
}

// A server is only in a project's file, and in no file of the person. The server gets variables of the person's
// environment only if the person agrees.
func TestProjectVariables_AreThoseOfServersThatAProjectBrings(t *testing.T) {
	t.Parallel()
	wrap := func(server string, scope clientconfig.Scope) clientsetup.Wrap {
		return clientsetup.Wrap{Server: server, Entry: clientconfig.Entry{Name: server, Scope: scope, Variables: []string{"HOME", "TOKEN", "UNSET"}}}
	}
	s := &setup{
		system: clientconfig.System{Getenv: func(name string) string { return map[string]string{"HOME": "/h", "TOKEN": "t"}[name] }},
		plan: &clientsetup.Plan{Wraps: []clientsetup.Wrap{
			wrap("project", clientconfig.Project), wrap("project", clientconfig.Project), wrap("user", clientconfig.User), wrap("both", clientconfig.Project), wrap("both", clientconfig.User),
		}},
	}
	for server, want := range map[string][]string{"project": {"TOKEN"}, "user": nil, "both": nil} {
		if _, got := s.projectVariables(server); !slices.Equal(got, want) {
			t.Errorf("%s: the variables are %v, want %v", server, got, want)
		}
	}
}

func TestStartQuestion_CountsProgramsAndURLs(t *testing.T) {
	t.Parallel()
	program, url := clientsetup.Server{Definition: clientsetup.Definition{Command: []string{"x"}}}, clientsetup.Server{Definition: clientsetup.Definition{URL: "https://x"}}
	want := "To compare them, init starts 2 program(s) and connects to 1 URL(s), as the clients do. Continue?"
	if got := startQuestion([]clientsetup.Server{program, url, program}, "as the clients do"); got != want {
		t.Errorf("the question is %q", got)
	}
}
