package clientconfig

import (
	"slices"

	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
)

// StdioEdit returns the edit that makes an entry start a program. If old is not nil, the edit replaces this entry, and
// keeps the members that affect only the client. Otherwise the edit adds an entry with the given name in the scope of
// the file.
func (f File) StdioEdit(name string, old *Entry, command string, args []string) configedit.Edit {
	d := f.Client.dialect
	server := configedit.Object{}
	if d.stdioType != "" {
		server = append(server, configedit.Field{Name: d.typeKey, Value: d.stdioType})
	}
	if d.commandHasArgs {
		server = append(server, configedit.Field{Name: d.command, Value: slices.Concat([]string{command}, args)})
	} else {
		server = append(server, configedit.Field{Name: d.command, Value: command}, configedit.Field{Name: d.args, Value: args})
	}
	return f.edit(name, old, server)
}

// HTTPEdit is like [File.StdioEdit] for a server that uses Streamable HTTP. It returns false if the client supports
// only programs.
func (f File) HTTPEdit(name string, old *Entry, url string, headers []Pair) (configedit.Edit, bool) {
	d := f.Client.dialect
	if !f.Client.HTTP {
		return configedit.Edit{}, false
	}
	server := configedit.Object{}
	if d.httpType != "" {
		server = append(server, configedit.Field{Name: d.typeKey, Value: d.httpType})
	}
	server = append(server, configedit.Field{Name: d.url, Value: url})
	if len(headers) > 0 {
		var values configedit.Object
		for _, h := range headers {
			values = append(values, configedit.Field{Name: h.Name, Value: h.Value})
		}
		var field any = values
		key := d.headers
		if d.headersIn != "" {
			key, field = d.headersIn, configedit.Object{{Name: d.headers, Value: values}}
		}
		server = append(server, configedit.Field{Name: key, Value: field})
	}
	return f.edit(name, old, server), true
}

// edit returns an edit with the members that describe a server. If old is not nil, the edit also contains the old
// entry's members that affect only the client. Otherwise it also contains the members that every new entry needs.
func (f File) edit(name string, old *Entry, server configedit.Object) configedit.Edit {
	d := f.Client.dialect
	at, rest := slices.Concat(d.containers[0], []string{name}), slices.Clone(d.added)
	if old != nil {
		at, rest = old.Path, old.kept
	}
	if nameKey := d.name + d.layout.NameKey; nameKey != "" { // at most one of the two keys is not empty
		value := any(name)
		if i := slices.IndexFunc(rest, func(m configedit.Field) bool { return m.Name == nameKey }); i >= 0 {
			value, rest = rest[i].Value, slices.Delete(slices.Clone(rest), i, i+1)
		}
		server = append(configedit.Object{{Name: nameKey, Value: value}}, server...)
	}
	return configedit.Edit{Path: at, Value: append(server, rest...)}
}
