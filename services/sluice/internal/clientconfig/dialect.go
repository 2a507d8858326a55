package clientconfig

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
)

// A dialect describes how a client's files store entries. Many fields contain the name of a key, or are empty if the
// client's files do not have this key.
type dialect struct {
	layout configedit.Layout
	// containers contains the paths of the maps or lists that contain entries. New entries are added to the first
	// container.
	containers [][]string
	// projects is the key of a map in the user's file. The keys of this map are project directories, and the values
	// contain the entries that are used only in these projects.
	projects string

	// name is the key of a member that repeats the entry's name.
	name                                           string
	typeKey, command, args, env, cwd, url, headers string
	// commandHasArgs is true if the command is a list that includes the arguments.
	commandHasArgs bool
	// headersIn is the key of the map that contains the headers. It is empty if the entry itself contains them.
	headersIn string
	// otherURL is a second key that may contain the URL.
	otherURL string
	// otherType is a second key that may contain the type. It is used if typeKey is missing.
	otherType string
	// disabled is the key of a boolean that is true in entries that the client does not use. enabled is the key of a
	// boolean that is false in such entries.
	disabled, enabled string

	// stdioType and httpType are the types in new entries. If they are empty, new entries have no type.
	stdioType, httpType string
	httpTypes, sseTypes []string
	// bareURL is the transport of an entry that has a URL but no type. If bareURL is empty, the transport is HTTP.
	bareURL Transport
	// builtinTypes lists the types of entries that are part of the client itself.
	builtinTypes []string
	// unsupported contains keys that Sluice does not support, with the reasons. `init` does not change entries that have
	// such a key.
	unsupported map[string]string
	// added contains the members that every new entry needs in addition to the description of the server.
	added configedit.Object

	variables syntax
	// The values of variableKeys are names of environment variables. The values of variableLists are lists of such names.
	// The values of variableMaps are maps with such names as values.
	variableKeys, variableLists, variableMaps []string
}

// A syntax describes how strings refer to variables. The zero value matches no references.
type syntax struct {
	// env matches a reference to an environment variable of the client. The first group that is not empty is the name
	// of the variable.
	env *regexp.Regexp
	// other matches references that only the client can resolve.
	other *regexp.Regexp
}

var (
	// dollarBraces matches the references ${V} and ${V:-default}.
	dollarBraces = syntax{env: regexp.MustCompile(`\$\{(\w+)(?::-[^}]*)?\}`), other: regexp.MustCompile(`\$\{[^}]*\}`)}
	// dollar matches the references $V, ${V}, ${V:-default} and %V%.
	dollar = syntax{
		env:   regexp.MustCompile(`\$\{(\w+)(?::-[^}]*)?\}|\$([A-Za-z_]\w*)|%([A-Za-z_]\w*)%`),
		other: regexp.MustCompile(`\$\{[^}]*\}`),
	}
	// envBraces matches the reference ${env:V}.
	envBraces = syntax{env: regexp.MustCompile(`\$\{env:(\w+)\}`), other: regexp.MustCompile(`\$\{[^}]*\}`)}
	// openCodeBraces matches the references {env:V} and {file:PATH}.
	openCodeBraces = syntax{env: regexp.MustCompile(`\{env:(\w+)\}`), other: regexp.MustCompile(`\{file:[^}]*\}`)}
	// secretBraces matches references such as ${{ secrets.V }}.
	secretBraces = syntax{other: regexp.MustCompile(`\$\{\{[^}]*\}\}`)}
)

// projectVariables matches the names of variables that the client sets to the directory of the project.
var projectVariables = regexp.MustCompile(`(?i)workspace|project_?(dir|root)`)

// references returns the names of the environment variables to which a value refers. If only the client can resolve a
// reference in the value, references returns a reason instead.
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

// transportKeys returns the keys that describe the connection to a server. Members with these keys are not copied when
// an entry is replaced.
func (d *dialect) transportKeys() []string {
	keys := slices.Concat(
		[]string{d.typeKey, d.command, d.args, d.env, d.cwd, d.url, d.headers, d.headersIn, d.otherURL, d.otherType},
		d.variableKeys, d.variableLists, d.variableMaps)
	for key := range d.unsupported {
		keys = append(keys, key)
	}
	return keys
}
