package clientconfig

import (
	"path"
	"strings"
)

// A Relay describes how an entry that starts `sluice stdio` connects to the mesh.
type Relay struct {
	// Server is the name of the server behind the mesh, or empty for all servers.
	Server string
	// As is the name of the client whose token the relay uses.
	As string
	// URL is the URL of a remote mesh, or empty for the person's own mesh.
	URL string
	// Config is the path of the configuration of the person's own mesh. It is empty in project files, because these are
	// shared between machines. In that case, the client's environment selects the mesh.
	Config string
}

// Args returns the arguments for `sluice` in an entry.
func (r Relay) Args() []string {
	args := []string{"stdio"}
	if r.Server != "" {
		args = append(args, "--server", r.Server)
	}
	args = append(args, "--as", r.As)
	if r.URL != "" {
		args = append(args, "--url", r.URL)
	}
	if r.Config != "" {
		args = append(args, "--config", r.Config)
	}
	return args
}

// parseRelay parses the arguments in an entry. It returns nil unless they are a result of [Relay.Args], in any order.
func parseRelay(args []string) *Relay {
	if len(args) == 0 || args[0] != "stdio" {
		return nil
	}
	r := new(Relay)
	values := map[string]*string{"--server": &r.Server, "--as": &r.As, "--url": &r.URL, "--config": &r.Config}
	for rest := args[1:]; len(rest) > 0; rest = rest[2:] {
		value := values[rest[0]]
		if value == nil || len(rest) == 1 || rest[1] == "" || strings.HasPrefix(rest[1], "-") {
			return nil
		}
		*value = rest[1]
		delete(values, rest[0]) // a flag may occur only once
	}
	if r.As == "" || r.URL != "" && r.Config != "" {
		return nil
	}
	return r
}

// SetRelay derives NamesSluice and Relay from the command and the arguments.
func (e *Entry) SetRelay() {
	base := path.Base(strings.ReplaceAll(e.Command, `\`, "/"))
	named := strings.HasPrefix(strings.ToLower(base), "sluice") // for example sluice.exe and sluice-linux-amd64
	if e.NamesSluice = named && len(e.Args) > 0 && e.Args[0] == "stdio"; e.NamesSluice {
		e.Relay = parseRelay(e.Args)
	}
}

// TakesFromClient returns the names of the environment variables and headers that the entry sets or takes from the
// client's environment.
func (e *Entry) TakesFromClient() []string {
	var out []string
	for _, p := range e.Env {
		out = append(out, p.Name)
	}
	for _, p := range e.Headers {
		out = append(out, p.Name)
	}
	for _, p := range e.passed {
		out = append(out, p.name)
	}
	return out
}
