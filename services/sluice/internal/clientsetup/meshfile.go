package clientsetup

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
)

// A MeshFile describes the additions that `init` makes to the configuration of the mesh.
type MeshFile struct {
	// Data is the data directory, and User is the subject of the person's tokens.
	Data, User string
	// Tokens contains the path of the file with each client's token, by client.
	Tokens map[string]string
	// Operator is the path of the file with the operator's token.
	Operator string
	Servers  []Server
	// References contains the references that replace the servers' secrets in the configuration.
	References map[SecretKey]string
	// Until is the time when observe mode ends for these servers (mode: observe). Before this time, decisions are recorded
	// but not enforced. The zero value means that the policy is always enforced.
	Until time.Time
	// Observe contains the names of the configured servers that get `mode: observe` until the time in Until.
	Observe []string
}

// A SecretKey identifies a secret of a server.
type SecretKey struct{ Server, Setting string }

// header is the beginning of a new configuration. The data directory is inserted as a JSON string, which is also a YAML
// string.
const header = `# sluice init wrote this file for your own mesh. You can edit it. The mesh reads tokens and policies again when they
# change, and everything else when it starts. ` + "`sluice config check`" + ` checks it.
listen: 127.0.0.1:0 # a free port; DATA/addresses.json has the real one
grpc: 127.0.0.1:0
data: %s
policies: [policies]
approvals:
  # You are the owner of your agents, and you approve their calls yourself.
  owner_may_approve: true
`

// A MeshEdit is an edit of the mesh's configuration.
type MeshEdit struct {
	// After is the new content.
	After []byte
	// Created is true if the configuration was empty or missing.
	Created bool

	// NotObserved contains servers in Observe that did not get `mode: observe` because their configuration can't be
	// edited. The values are the reasons.
	NotObserved map[string]string

	changes []*configedit.Change
}

// Edit returns the old configuration with the additions. If there is no old configuration, Edit creates one. It keeps
// comments and all existing settings.
func (m MeshFile) Edit(old []byte) ([]byte, error) {
	e, err := m.Change(old)
	if err != nil {
		return nil, err
	}
	return e.After, nil
}

// Change is like Edit, but also returns the individual changes, so that they can be undone.
func (m MeshFile) Change(old []byte) (*MeshEdit, error) {
	e := &MeshEdit{After: old, Created: len(old) == 0, NotObserved: make(map[string]string)}
	if e.Created {
		data, err := json.Marshal(m.Data)
		if err != nil {
			return nil, err
		}
		e.After = fmt.Appendf(nil, header, data)
	}
	if err := e.apply(yamlLists, m.tokens(e.After)); err != nil {
		return nil, fmt.Errorf("add tokens: %w", err)
	}
	var edits []configedit.Edit
	for _, s := range m.Servers {
		edits = append(edits, configedit.Edit{Path: []string{"servers", s.Name}, Value: m.server(s)})
	}
	if err := e.apply(yamlMaps, edits); err != nil {
		return nil, fmt.Errorf("add servers: %w", err)
	}
	for _, name := range m.Observe {
		change, err := configedit.SetMembers(e.After, []string{"servers", name}, m.observed())
		if refused, ok := errors.AsType[*configedit.EditError](err); ok {
			e.NotObserved[name] = refused.Error()
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("observe %s: %w", name, err)
		}
		e.After, e.changes = change.After, append(e.changes, change)
	}
	return e, nil
}

// observed returns the members that set `mode: observe` in a server's configuration.
func (m MeshFile) observed() configedit.Object {
	return configedit.Object{{Name: "mode", Value: "observe"}, {Name: "until", Value: m.Until.UTC().Format(time.RFC3339)}}
}

func (e *MeshEdit) apply(l configedit.Layout, edits []configedit.Edit) error {
	for batch := range slices.Chunk(edits, configedit.MaxEdits) {
		change, err := configedit.Apply(l, e.After, batch...)
		if err != nil {
			return err
		}
		e.After, e.changes = change.After, append(e.changes, change)
	}
	return nil
}

// operatorName is the name of the operator's token in the configuration.
const operatorName = "operator"

// tokens returns the edits that add the missing tokens to the configuration.
func (m MeshFile) tokens(content []byte) []configedit.Edit {
	has := make(map[string]bool)
	if root, err := configedit.Parse(yamlLists, content); err == nil { // if the content can't be parsed, the edits fail later
		for _, e := range root.Entries(yamlLists, "auth", "tokens") {
			has[e.Name] = true
		}
	}
	var out []configedit.Edit
	add := func(name, path string, rest ...configedit.Field) {
		if has[name] {
			return
		}
		token := configedit.Object{{Name: "name", Value: name}, {Name: "token", Value: "${file:" + path + "}"}, {Name: "tenant", Value: "default"}}
		out = append(out, configedit.Edit{Path: []string{"auth", "tokens", name}, Value: append(token, rest...)})
	}
	field := func(name, value string) configedit.Field { return configedit.Field{Name: name, Value: value} }
	add(operatorName, m.Operator, field("subject", m.User), field("role", "operator"))
	for _, client := range sortedKeys(m.Tokens) {
		// The token's subject is the client and not the person, because a caller can never approve its own calls, but an
		// agent's owner can.
		add(client, m.Tokens[client], field("subject", client), field("owner", m.User), field("agent", client), field("role", "agent"))
	}
	return out
}

// server returns the configuration of a server.
func (m MeshFile) server(s Server) configedit.Object {
	values := func(settings []Setting) configedit.Object {
		var out configedit.Object
		for _, v := range settings {
			value := v.Value
			if v.Secret {
				value = m.References[SecretKey{s.Name, v.Name}]
			}
			out = append(out, configedit.Field{Name: v.Name, Value: value})
		}
		return out
	}
	var observed configedit.Object
	if !m.Until.IsZero() {
		observed = m.observed()
	}
	if s.URL != "" {
		out := configedit.Object{{Name: "url", Value: s.URL}}
		if headers := values(s.Headers); headers != nil {
			out = append(out, configedit.Field{Name: "headers", Value: headers})
		}
		return append(configedit.Object{{Name: "http", Value: out}}, observed...)
	}
	out := configedit.Object{{Name: "command", Value: s.Command}}
	if s.Dir != "" {
		out = append(out, configedit.Field{Name: "dir", Value: s.Dir})
	}
	if env := values(s.Env); env != nil {
		out = append(out, configedit.Field{Name: "env", Value: env})
	}
	if len(s.HomeEntries) > 0 {
		out = append(out, configedit.Field{Name: "sandbox", Value: configedit.Object{{Name: "home", Value: s.HomeEntries}}})
	}
	return append(configedit.Object{{Name: "stdio", Value: out}}, observed...)
}

// Existing returns the servers in a configuration. A secret that can't be read gets an empty value, so that its server
// does not equal any entry in a client's file.
func Existing(f *config.File, env config.Env) []Server {
	settings := func(values map[string]config.Secret) []Setting {
		var out []Setting
		for _, name := range sortedKeys(values) {
			value, err := values[name].ResolveLocal(f, env)
			if err != nil {
				value = ""
			}
			out = append(out, Setting{Name: name, Value: value, Secret: len(values[name].References()) > 0})
		}
		return out
	}
	var out []Server
	for _, name := range sortedKeys(f.Servers) {
		s := Server{Name: name, Existing: true}
		switch c := f.Servers[name]; {
		case c.Stdio != nil:
			s.Command, s.Env = c.Stdio.Command, settings(c.Stdio.Env)
			if c.Stdio.Dir != "private" {
				s.Dir = c.Stdio.Dir
			}
		case c.HTTP != nil:
			s.URL, s.Headers = c.HTTP.URL, settings(c.HTTP.Headers)
		}
		out = append(out, s)
	}
	return out
}

// allowMethods is the beginning of the rules for methods that a person uses in a client, such as prompts and resources.
// A policy without such rules refuses these methods.
const allowMethods = `rules:
  # Prompts and resources pass: a person or the client chooses them. Remove a rule to refuse them.
`

// WithMethods adds rules to a policy document. The rules allow the methods for prompts, resources and completions if
// the server has these capabilities. The tools must be the last section of the document.
func WithMethods(document []byte, capabilities jsontext.Value) ([]byte, error) {
	var has map[string]jsontext.Value
	if err := json.Unmarshal(capabilities, &has); err != nil {
		return nil, fmt.Errorf("read the capabilities of the server: %w", err)
	}
	methods := map[string][]string{
		"prompts":     {"prompts/list", "prompts/get"},
		"resources":   {"resources/list", "resources/templates/list", "resources/read", "resources/subscribe", "resources/unsubscribe"},
		"completions": {"completion/complete"},
	}
	out := append(slices.Clone(document), allowMethods...)
	size := len(out)
	for _, name := range sortedKeys(methods) {
		if _, ok := has[name]; !ok {
			continue
		}
		out = fmt.Appendf(out, "  - {name: %s, match: {method: [%s]}, action: allow}\n", name, strings.Join(methods[name], ", "))
	}
	if len(out) == size {
		return document, nil
	}
	return out, nil
}
