package clientconfig

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
)

// A Transport is the kind of connection between a client and a server. The zero value means that no connection is
// configured.
type Transport string

// These are the transports.
const (
	// Stdio means that the client starts the server as a program.
	Stdio Transport = "stdio"
	// HTTP means that the client connects with Streamable HTTP.
	HTTP Transport = "http"
	// SSE means that the client connects with HTTP+SSE of revision 2024-11-05, which Sluice does not support.
	SSE Transport = "sse"
)

// A Pair is an environment variable or a header.
type Pair struct{ Name, Value string }

// An Entry describes an MCP server in a configuration file.
type Entry struct {
	Name  string
	Scope Scope
	// Project is the directory of the project. It is empty for entries of the user.
	Project string
	// Path is the path of the entry in the file, for use in a [configedit.Edit]. It is empty if the entry has no name.
	Path []string

	Transport Transport
	Command   string
	Args      []string
	Env       []Pair
	// Cwd is the working directory. It is empty if the server uses the client's working directory.
	Cwd     string
	URL     string
	Headers []Pair
	// Disabled is true if the client does not use the entry.
	Disabled bool
	// Variables contains the names of the client's environment variables to which the entry refers, sorted.
	Variables []string
	// NamesSluice is true if the entry runs the command `stdio` of a program whose name begins with sluice. The program
	// might not be Sluice. Relay contains the arguments of this command. It is nil if Sluice does not write such
	// arguments.
	NamesSluice bool
	Relay       *Relay
	// Wrapped is true if the entry reaches its server through the mesh. If NamesSluice is true and Wrapped is false, Fault
	// contains the reason and a solution. The caller sets both fields, because this package does not know which program
	// and which mesh are in use.
	Wrapped bool
	Fault   string
	// Reason says why the entry can't be changed to start `sluice stdio`, and how to correct this. It is empty if the
	// entry can be changed.
	Reason string

	kept   configedit.Object
	syntax syntax
	// passed contains the variables and headers whose values the entry takes from the client's environment.
	passed []passed
}

// Entries returns the entries in a file. If the file can't be parsed, the error is a [*configedit.EditError].
func (f File) Entries(data []byte) ([]Entry, error) {
	root, err := configedit.Parse(f.Layout, data)
	if err != nil {
		return nil, err
	}
	d := f.Client.dialect
	var out []Entry
	for _, container := range d.containers {
		out = append(out, f.entries(root, nil, container, f.Scope, f.Project)...)
	}
	if f.Scope != User || d.projects == "" {
		return out, nil
	}
	for _, project := range root.Entries(configedit.Layout{}, d.projects) {
		at := []string{d.projects, project.Name}
		out = append(out, f.entries(project.Value, at, d.containers[0], Local, project.Name)...)
	}
	return out, nil
}

// Projects returns the project directories in a user's file, or nil if the file can't be parsed.
func (f File) Projects(data []byte) []string {
	d := f.Client.dialect
	if f.Scope != User || d.projects == "" {
		return nil
	}
	root, err := configedit.Parse(f.Layout, data)
	if err != nil {
		return nil
	}
	var out []string
	for _, project := range root.Entries(configedit.Layout{}, d.projects) {
		out = append(out, project.Name)
	}
	return out
}

// entries returns the entries in one container below a node. The parameter path is the path of the node in the file,
// and container is the path from the node to the container.
func (f File) entries(n *configedit.Node, path, container []string, scope Scope, project string) []Entry {
	d := f.Client.dialect
	at := slices.Concat(path, container)
	var out []Entry
	for _, e := range n.Entries(f.Layout, container...) {
		own := slices.Concat(at, []string{e.Name})
		if slices.ContainsFunc(d.containers, func(c []string) bool { return slices.Equal(c, own) }) && !isServer(d, e.Value) {
			continue // in OpenCode, the container mcp.servers is a member of the container mcp
		}
		out = append(out, readEntry(d, e.Value, Entry{Name: e.Name, Scope: scope, Project: project, Path: own}))
	}
	if list := n.Get(container...); list != nil && d.layout.NameKey != "" {
		for _, item := range list.Items {
			if name := item.Get(d.layout.NameKey); name == nil || name.Kind != configedit.String {
				e := readEntry(d, item, Entry{Scope: scope, Project: project})
				if e.Reason == "" {
					e.Reason = fmt.Sprintf("has no %q: add one", d.layout.NameKey)
				}
				out = append(out, e)
			}
		}
	}
	return out
}

// isServer reports whether a value is the entry of a server and not a container of entries. Only entries of servers
// have a type.
func isServer(d dialect, n *configedit.Node) bool {
	kind := n.Get(d.typeKey)
	return kind != nil && kind.Kind == configedit.String
}

func readEntry(d dialect, n *configedit.Node, e Entry) Entry {
	r := reader{dialect: d, node: n, entry: e}
	r.read()
	return r.entry
}

// A reader reads one entry. It stores the first reason why the entry can't be changed to start `sluice stdio`.
type reader struct {
	dialect dialect
	node    *configedit.Node
	entry   Entry
}

func (r *reader) refuse(reason string) {
	if r.entry.Reason == "" {
		r.entry.Reason = reason
	}
}

func (r *reader) read() {
	d, e := r.dialect, &r.entry
	if r.node.Kind != configedit.Map {
		r.refuse("is not a map: correct the entry")
		return
	}
	if len(r.node.Members) > configedit.MaxMembers {
		r.refuse(fmt.Sprintf("has more than %d members: remove those that are not needed", configedit.MaxMembers))
		return
	}
	e.syntax = d.variables
	e.Disabled = r.bool(d.disabled, false) || !r.bool(d.enabled, true)
	r.readCommand()
	e.Env, e.Cwd = r.pairs(d.env), r.string(d.cwd)
	e.URL = r.string(d.url)
	if d.headersIn != "" {
		outer := r.node
		if r.node = outer.Get(d.headersIn); r.node == nil {
			r.node = &configedit.Node{Kind: configedit.Map}
		}
		e.Headers = r.pairs(d.headers)
		r.node = outer
	} else {
		e.Headers = r.pairs(d.headers)
	}
	r.readTransport()
	r.readVariables()
	r.readKept()
	e.SetRelay()
}

// readCommand reads the command and its arguments. It refuses a command that is a map with path, args and env. Earlier
// versions of Zed wrote such commands.
func (r *reader) readCommand() {
	d, e := r.dialect, &r.entry
	switch command := r.node.Get(d.command); {
	case d.command == "" || command == nil:
	case d.commandHasArgs:
		all := r.strings(d.command)
		if len(all) > 0 {
			e.Command, e.Args = all[0], all[1:]
		}
		return
	case command.Kind == configedit.Map:
		r.refuse(fmt.Sprintf("has an old form of %q: write the command as a string, and the arguments in %q", d.command, d.args))
	default:
		e.Command = r.string(d.command)
	}
	e.Args = r.strings(d.args)
}

func (r *reader) readTransport() {
	d, e := r.dialect, &r.entry
	kind := r.string(d.typeKey)
	if kind == "" {
		kind = r.string(d.otherType)
	}
	if e.URL == "" {
		e.URL = r.string(d.otherURL)
	}
	switch {
	case slices.Contains(d.builtinTypes, kind):
		r.refuse("is part of the client: restrict it in the settings of the client")
	case slices.Contains(d.sseTypes, kind):
		e.Transport = SSE
	case slices.Contains(d.httpTypes, kind):
		e.Transport = HTTP
	case e.Command != "":
		e.Transport = Stdio
	case e.URL != "" && d.bareURL != "" && kind == "":
		e.Transport = d.bareURL
	case e.URL != "":
		e.Transport = HTTP
	}
	for _, key := range slices.Sorted(maps.Keys(d.unsupported)) {
		if n := r.node.Get(key); n != nil && len(n.Items)+len(n.Members)+len(n.Text) > 0 {
			r.refuse(d.unsupported[key] + fmt.Sprintf(" (%q): leave it, or configure the server without it", key))
		}
	}
	switch {
	case e.Transport == SSE:
		r.refuse("uses the transport HTTP+SSE, which Sluice does not support: use Streamable HTTP if the server has it")
	case e.Transport == "":
		r.refuse("has neither a command nor a URL: complete the entry")
	case e.Transport == HTTP && e.URL == "":
		r.refuse(fmt.Sprintf("has no %q: complete the entry", d.url))
	}
}

func (r *reader) readVariables() {
	d, e := r.dialect, &r.entry
	if isRelative(e.Command) || e.Cwd != "" && !isAbsolute(e.Cwd) || e.Cwd == "" && slices.ContainsFunc(e.Args, isDotPath) {
		r.refuse("has a path that depends on the folder of the client: write an absolute path")
	}
	if len(config.URLSecrets(e.URL)) > 0 {
		r.refuse("has a credential in its URL, which people would see in approvals: put it in a header if the server allows it")
	}
	values := slices.Concat([]string{e.Command, e.Cwd, e.URL}, e.Args)
	for _, p := range slices.Concat(e.Env, e.Headers) {
		values = append(values, p.Value)
	}
	for _, value := range values {
		names, reason := d.variables.references(value)
		if reason != "" {
			r.refuse(reason)
		}
		e.Variables = append(e.Variables, names...)
	}
	for _, key := range d.variableKeys {
		if name := r.string(key); name != "" {
			e.passed = append(e.passed, passed{name: "Authorization", prefix: "Bearer ", variable: name, header: true})
		}
	}
	for _, key := range d.variableLists {
		for _, name := range r.strings(key) {
			e.passed = append(e.passed, passed{name: name, variable: name})
		}
	}
	for _, key := range d.variableMaps {
		for _, p := range r.pairs(key) {
			e.passed = append(e.passed, passed{name: p.Name, variable: p.Value, header: true})
		}
	}
	for _, p := range e.passed {
		e.Variables = append(e.Variables, p.variable)
	}
	slices.Sort(e.Variables)
	e.Variables = slices.Compact(e.Variables)
}

// isRelative reports whether a command is a path that depends on the working directory.
func isRelative(command string) bool {
	return strings.ContainsAny(command, `/\`) && !isAbsolute(command)
}

// isDotPath reports whether an argument is a path that begins at the working directory or its parent. For a flag such
// as --config=./x, it checks the value.
func isDotPath(arg string) bool {
	if _, value, ok := strings.Cut(arg, "="); ok && strings.HasPrefix(arg, "-") {
		arg = value
	}
	first, _, _ := strings.Cut(strings.ReplaceAll(arg, `\`, "/"), "/")
	return first == "." || first == ".."
}

// isAbsolute reports whether a path is absolute on any operating system. A path that begins with a variable or with the
// home directory counts as absolute.
func isAbsolute(p string) bool {
	return strings.ContainsAny(p[:1], `/\~$%{`) || len(p) > 1 && p[1] == ':'
}

// readKept collects the members that affect only the client, such as a timeout or the list of tools that need no
// confirmation.
func (r *reader) readKept() {
	keys := r.dialect.transportKeys()
	for _, m := range r.node.Members {
		if !slices.Contains(keys, m.Name) {
			r.entry.kept = append(r.entry.kept, configedit.Field{Name: m.Name, Value: m.Value})
		}
	}
}

func (r *reader) get(key string) *configedit.Node {
	if key == "" {
		return nil
	}
	if n := r.node.Get(key); n != nil && n.Kind != configedit.Null {
		return n
	}
	return nil
}

func (r *reader) wrong(key, wanted string) {
	r.refuse(fmt.Sprintf("has a %q that is not %s: correct the entry", key, wanted))
}

func (r *reader) bool(key string, fallback bool) bool {
	n := r.get(key)
	if n == nil || n.Kind != configedit.Bool {
		return fallback
	}
	return n.Text == "true"
}

func (r *reader) string(key string) string {
	n := r.get(key)
	switch {
	case n == nil:
		return ""
	case n.Kind != configedit.String:
		r.wrong(key, "a string")
		return ""
	default:
		return n.Text
	}
}

func (r *reader) strings(key string) []string {
	n := r.get(key)
	if n == nil {
		return nil
	}
	if n.Kind != configedit.List {
		r.wrong(key, "a list of strings")
		return nil
	}
	var out []string
	for _, item := range n.Items {
		if item.Kind != configedit.String {
			r.wrong(key, "a list of strings")
			return nil
		}
		out = append(out, item.Text)
	}
	return out
}

// pairs reads a map. Numbers and booleans are accepted as values, because clients convert them to strings.
func (r *reader) pairs(key string) []Pair {
	n := r.get(key)
	if n == nil {
		return nil
	}
	if n.Kind != configedit.Map {
		r.wrong(key, "a map of strings")
		return nil
	}
	var out []Pair
	for _, m := range n.Members {
		if !slices.Contains([]configedit.Kind{configedit.String, configedit.Number, configedit.Bool}, m.Value.Kind) {
			r.wrong(key, "a map of strings")
			return nil
		}
		out = append(out, Pair{m.Name, m.Value.Text})
	}
	return out
}
