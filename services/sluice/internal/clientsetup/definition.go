package clientsetup

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/homeneeds"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
)

// A Setting is an environment variable or a header of a server.
type Setting struct {
	Name, Value string
	// Secret is true if the value is stored in the secret store and not in the mesh's configuration.
	Secret bool
}

// A Definition describes an MCP server independently of the client. Exactly one of Command and URL is set.
type Definition struct {
	// Command is the program with its arguments.
	Command []string
	// Dir is the working directory. If it is empty, the server gets a private directory.
	Dir string
	// HomeEntries contains the files and directories in HOME that the program probably needs to log in. They are necessary
	// because a server that the mesh starts has a private HOME. They are derived from Command, and do not count in
	// comparisons.
	HomeEntries []string
	Env         []Setting

	URL     string
	Headers []Setting
}

// Environment contains the data that is needed to derive a server's definition from a client's entry.
type Environment struct {
	// Home is the user's home directory.
	Home string
	// Getenv returns the value of an environment variable, or an empty string if the variable is not set.
	Getenv func(string) string
}

// define returns the definition of the server in an entry. If the mesh can't run the server, define returns the reason.
func (v Environment) define(e clientconfig.Entry) (_ Definition, reason string) {
	if e.Reason != "" {
		return Definition{}, e.Reason
	}
	env, headers, missing := e.Settings(v.Getenv)
	if len(missing) > 0 {
		return Definition{}, fmt.Sprintf("uses the environment variable %s, which is not set here: set it and run the command again", missing[0])
	}
	if e.Transport == clientconfig.HTTP {
		if shown := v.variableIn(e, e.URL); shown != "" {
			return Definition{}, fmt.Sprintf("has $%s in its URL, which people see in approvals: write the value, or a header", shown)
		}
		return Definition{URL: e.URL, Headers: settings(headers, true)}, ""
	}
	return v.defineProgram(e, env)
}

func (v Environment) defineProgram(e clientconfig.Entry, env []clientconfig.Pair) (_ Definition, reason string) {
	words := append([]string{e.Command}, e.Args...)
	for i, word := range words {
		if shown := v.variableIn(e, word); shown != "" {
			return Definition{}, fmt.Sprintf("has $%s in its command, which people see in approvals: write the value, or set the variable in the entry's environment", shown)
		}
		word, _ = e.Expand(word, v.Getenv)
		words[i] = v.expandHome(word)
		if strings.Contains(words[i], "${") {
			return Definition{}, "has ${ in its command, which the mesh would read as a reference: write the value"
		}
	}
	if at := secretWord(words); at > 0 {
		return Definition{}, fmt.Sprintf("has what looks like a credential in argument %d, which people would see in approvals: put it into the entry's environment if the server allows it", at)
	}
	dir, _ := e.Expand(e.Cwd, v.Getenv)
	dir = cmp.Or(v.expandHome(dir), e.Project)
	d := Definition{Command: words, Dir: dir, Env: settings(env, false)}
	if dir == "" && !slices.ContainsFunc(d.Env, func(s Setting) bool { return s.Name == "HOME" }) {
		d.HomeEntries = slices.DeleteFunc(homeneeds.Detect(words), func(entry string) bool {
			_, err := os.Stat(filepath.Join(v.Home, entry))
			return err != nil
		})
	}
	return d, ""
}

// publicVariables contains variables whose values are not secret, so they may be visible in commands.
var publicVariables = []string{"HOME", "USERPROFILE", "USER", "USERNAME"}

// variableIn returns the name of an environment variable to which the given value refers, except for publicVariables.
// It returns "" if there is no such variable.
func (v Environment) variableIn(e clientconfig.Entry, value string) string {
	var found string
	_, _ = e.Expand(value, func(name string) string {
		if !slices.Contains(publicVariables, name) {
			found = name
		}
		return "x"
	})
	return found
}

// expandHome replaces a leading ~/ with the user's home directory, because a server that the mesh starts has a
// different home directory.
func (v Environment) expandHome(word string) string {
	if word == "~" {
		return v.Home
	}
	if rest, ok := strings.CutPrefix(word, "~/"); ok {
		return filepath.Join(v.Home, rest)
	}
	return word
}

// plainHeaders matches the names of headers that contain no secret.
var plainHeaders = regexp.MustCompile(`(?i)^(accept|accept-language|content-type|user-agent)$`)

// settings converts environment variables or headers to settings, sorted by name.
func settings(pairs []clientconfig.Pair, headers bool) []Setting {
	var out []Setting
	for _, p := range pairs {
		out = append(out, Setting{Name: p.Name, Value: p.Value, Secret: IsSecret(p, headers)})
	}
	slices.SortStableFunc(out, func(a, b Setting) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// IsSecret reports whether the value of an environment variable or a header must be stored in the secret store. A
// header is secret unless its name is known to be harmless. A variable is secret if its name or its value looks like a
// credential.
func IsSecret(p clientconfig.Pair, header bool) bool {
	switch {
	case p.Value == "":
		return false
	case strings.Contains(p.Value, "${"): // the mesh resolves a reference in its configuration, but not in a stored secret
		return true
	case header:
		return !plainHeaders.MatchString(p.Name)
	default:
		return config.LooksSecret(p.Name, p.Value)
	}
}

// SecretArgument returns the part of an entry's command that looks like a credential, or "" if there is none.
func SecretArgument(e clientconfig.Entry) string {
	words := append([]string{e.Command}, e.Args...)
	at := secretWord(words)
	if at == 0 {
		return ""
	}
	if _, value, ok := strings.Cut(words[at], "="); ok {
		return value
	}
	return words[at]
}

// secretWord returns the index of the first word of a command that looks like a credential, or 0 if there is none.
func secretWord(words []string) int {
	flag := ""
	for i, word := range words {
		name, value, ok := strings.Cut(word, "=")
		switch {
		case i == 0:
			continue
		case ok && config.LooksSecret(strings.TrimLeft(name, "-"), value):
			return i
		case flag != "" && !strings.HasPrefix(word, "-") && config.LooksSecret(flag, word), config.LooksSecret("", word), len(config.URLSecrets(word)) > 0:
			return i
		}
		flag = ""
		if strings.HasPrefix(word, "-") && !ok {
			flag = strings.TrimLeft(word, "-")
		}
	}
	return 0
}

// equal reports whether two definitions describe the same server with the same credentials and directories.
func (d Definition) equal(other Definition) bool {
	same := func(a, b Setting) bool { return a.Name == b.Name && a.Value == b.Value }
	return slices.Equal(d.Command, other.Command) && d.Dir == other.Dir && d.URL == other.URL &&
		slices.EqualFunc(d.Env, other.Env, same) && slices.EqualFunc(d.Headers, other.Headers, same)
}

// Secrets returns the settings whose values are stored in the secret store.
func (d Definition) Secrets() []Setting {
	var out []Setting
	for _, v := range slices.Concat(d.Env, d.Headers) {
		if v.Secret {
			out = append(out, v)
		}
	}
	return out
}
