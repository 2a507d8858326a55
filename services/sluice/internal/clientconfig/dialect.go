package clientconfig

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
)

// A dialect describes how the files of a client store entries. A key that the client does not have is empty.
type dialect struct {
	layout configedit.Layout
	// containers contains the paths of the containers of entries. New entries are added to the first one.
	containers [][]string
	// projects is the key of a map from directories to maps with the containers of the local scope.
	projects string

	// name is the key that repeats the name of an entry.
	name                                           string
	typeKey, command, args, env, cwd, url, headers string
	// commandHasArgs is true if the command is a list that includes the arguments.
	commandHasArgs bool
	// headersIn is the key of the map that contains the headers.
	headersIn string
	// otherURL is a second key of the URL.
	otherURL string
	// otherType is a second key of the type, which is used if the first one is missing.
	otherType string
	// disabled is a key with the value true in disabled entries, and enabled a key with the value false.
	disabled, enabled string

	// stdioType and httpType are the types of new entries. If they are empty, new entries have no type.
	stdioType, httpType string
	httpTypes, sseTypes []string
	// bareURL is the transport of an entry that has a URL and no type. It is HTTP if it is empty.
	bareURL Transport
	// builtinTypes are the types of entries that are part of the client.
	builtinTypes []string
	// unsupported maps keys to the reasons for which an entry that has them can't be wrapped.
	unsupported map[string]string
	// added contains the members that a new entry must have, in addition to those of the server.
	added configedit.Object

	variables syntax
	// variableKeys, variableLists and variableMaps are the keys of names of environment variables: one name, a list of
	// names, and a map of values to names.
	variableKeys, variableLists, variableMaps []string
}

// A syntax describes references to variables in strings. The zero value has no references.
type syntax struct {
	// env matches a reference to an environment variable of the client. Its first group that is not empty is the name.
	env *regexp.Regexp
	// other matches references that only the client can resolve.
	other *regexp.Regexp
}

var (
	// dollarBraces is ${V} and ${V:-default}.
	dollarBraces = syntax{env: regexp.MustCompile(`\$\{(\w+)(?::-[^}]*)?\}`), other: regexp.MustCompile(`\$\{[^}]*\}`)}
	// dollar is $V, ${V}, ${V:-default} and %V%.
	dollar = syntax{
		env:   regexp.MustCompile(`\$\{(\w+)(?::-[^}]*)?\}|\$([A-Za-z_]\w*)|%([A-Za-z_]\w*)%`),
		other: regexp.MustCompile(`\$\{[^}]*\}`),
	}
	// envBraces is ${env:V}.
	envBraces = syntax{env: regexp.MustCompile(`\$\{env:(\w+)\}`), other: regexp.MustCompile(`\$\{[^}]*\}`)}
	// openCodeBraces is {env:V} and {file:PATH}.
	openCodeBraces = syntax{env: regexp.MustCompile(`\{env:(\w+)\}`), other: regexp.MustCompile(`\{file:[^}]*\}`)}
	// secretBraces is ${{ secrets.V }}.
	secretBraces = syntax{other: regexp.MustCompile(`\$\{\{[^}]*\}\}`)}
)

// projectVariables are the names of variables that the client sets to the directory of the project.
var projectVariables = regexp.MustCompile(`(?i)workspace|project_?(dir|root)`)

// references returns the names of the environment variables in a value. The reason is not empty if the value has a
// reference that only the client can resolve.
func (s syntax) references(value string) (names []string, reason string) {
	if s.env != nil {
		for _, groups := range s.env.FindAllStringSubmatch(value, -1) {
			name := strings.Join(groups[1:], "") // only one group matches
			if projectVariables.MatchString(name) {
				return nil, needsProject
			}
			names = append(names, name)
		}
		value = s.env.ReplaceAllString(value, "")
	}
	if s.other == nil {
		return names, ""
	}
	found := s.other.FindString(value)
	switch {
	case found == "":
		return names, ""
	case projectVariables.MatchString(found):
		return nil, needsProject
	default:
		return nil, fmt.Sprintf("refers to %s, which only the client can resolve: replace it with the value", found)
	}
}

const needsProject = "needs the folder of the project: leave it in the project's file"

// transportKeys returns the keys that describe the connection to a server. A new entry does not take them over from the
// entry that it replaces.
func (d *dialect) transportKeys() []string {
	keys := slices.Concat(
		[]string{d.typeKey, d.command, d.args, d.env, d.cwd, d.url, d.headers, d.headersIn, d.otherURL, d.otherType},
		d.variableKeys, d.variableLists, d.variableMaps)
	for key := range d.unsupported {
		keys = append(keys, key)
	}
	return keys
}
