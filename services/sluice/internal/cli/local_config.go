package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"github.com/sluice-mesh/sluice/services/internal/hosttools"
	"io"
	"io/fs"
	"maps"
	"net/url"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/sluice/internal/localconfig"
)

// localFile is the configuration in the working directory. It is read only once, so that the command uses exactly the
// content to which the person has agreed.
type localFile struct {
	file    *config.File
	content []byte
	folder  string
}

// loadLocal returns the configuration that --config or SLUICE_CONFIG names. If neither is set, it returns the
// configuration in the working directory and a description of this file. If there is no such file, it returns the
// configuration of the person's own mesh if personalConfig finds one, and otherwise the defaults. Only commands that
// send no token may call loadLocal, because the file could contain the address of another machine.
func (t *tool) loadLocal() (f *config.File, found *localFile, err error) {
	if t.config != "" {
		f, err = t.loadFile()
		return f, nil, err
	}
	raw, err := localconfig.Read(".")
	if errors.Is(err, fs.ErrNotExist) {
		f, err = t.loadFile()
		return f, nil, err
	}
	if err != nil {
		return nil, nil, err
	}
	if f, err = config.Parse(localconfig.Name, raw, app.Env); err != nil {
		return nil, nil, err
	}
	if t.data != "" {
		f.SetData(t.data)
	}
	folder, err := filepath.EvalSymlinks(filepath.Dir(f.Name()))
	if err != nil {
		return nil, nil, fmt.Errorf("find the folder of %s: %w", localconfig.Name, err)
	}
	return f, &localFile{file: f, content: raw, folder: folder}, nil
}

// reader returns a function that reads the file again, or nil if there is no file in the working directory. The
// function returns an error if the person has not agreed to the content. Without this check, a program that can write
// to the file could create tokens.
func (l *localFile) reader() func() ([]byte, error) {
	if l == nil {
		return nil
	}
	return func() ([]byte, error) {
		raw, err := localconfig.Read(l.folder)
		if err != nil || bytes.Equal(raw, l.content) {
			return raw, err
		}
		agreed, err := localconfig.OpenAgreed()
		if err != nil {
			return nil, err
		}
		if !agreed.Has(localconfig.Digest(l.folder, raw)) {
			return nil, fmt.Errorf("%s has changed, and you have not agreed to the new content: start the mesh again, or name the file with --config", l.file.Name())
		}
		return raw, nil
	}
}

// requireAgreement returns an error if the file gets secrets from commands or Vault, and the person has not agreed to the
// content. Otherwise a repository could run commands when a person only checks its file.
func (l *localFile) requireAgreement() error {
	if l == nil || len(l.file.Secrets.Commands) == 0 && l.file.Secrets.Vault.Address == "" {
		return nil
	}
	agreed, err := localconfig.OpenAgreed()
	if err != nil {
		return err
	}
	if !agreed.Has(localconfig.Digest(l.folder, l.content)) {
		return fmt.Errorf("%s in this folder gets secrets from commands or Vault, and you have not agreed to its content: agree in `sluice up`, or name the file with --config %s", localconfig.Name, localconfig.Name)
	}
	return nil
}

// confirmLocal asks the person to agree to the configuration in the working directory, unless the person has agreed to
// the same content before. It first shows what the configuration would use. It returns an error if there is no
// terminal.
func (t *tool) confirmLocal(ctx context.Context, found *localFile) error {
	if !isInteractive(false) {
		return fmt.Errorf("%s in this folder is not used, because there is no terminal to ask you at: name it with --config %s", localconfig.Name, localconfig.Name)
	}
	agreed, err := localconfig.OpenAgreed()
	if err != nil {
		fmt.Fprintf(t.errOut, "sluice: your answer is not stored, so you will be asked again: %v\n", err)
	}
	digest := localconfig.Digest(found.folder, found.content)
	if agreed.Has(digest) {
		return nil
	}
	_ = oneLine(t.errOut, "%s would use:", found.file.Name())
	printUses(t.errOut, found.file)
	if err := t.confirm(ctx, false, "Run the mesh with this file? You are asked once for this content."); err != nil {
		return fmt.Errorf("nothing was started: to use another file instead of %s, name it with --config FILE, or run the command in another folder", localconfig.Name)
	}
	if err := agreed.Add(digest); err != nil {
		fmt.Fprintf(t.errOut, "sluice: your answer is not stored, so you will be asked again: %v\n", err)
	}
	return nil
}

// printUses prints the programs, the addresses, the files and the names of secrets in a configuration. It does not
// print the secrets themselves.
func printUses(w io.Writer, f *config.File) {
	line := func(what, format string, args ...any) {
		_ = oneLine(w, "  %-9s %s", what, fmt.Sprintf(format, args...))
	}
	line("listens", "MCP %s, gRPC %s", f.Listen, f.GRPC)
	line("data", "%s", f.Path(f.Data))
	for _, token := range f.Auth.Tokens {
		line("token", "%s, with the role %s", token.Name, token.Role)
	}
	for _, name := range slices.Sorted(maps.Keys(f.Servers)) {
		line("server", "%s: %s", name, describeServer(f.Servers[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(f.Secrets.Commands)) {
		line("command", "secret %s: runs %s", name, shellWords(f.Secrets.Commands[name].Command...))
	}
	if f.PoliciesInStore() {
		line("policies", "in the store")
	}
	for _, p := range f.PolicyFiles() {
		line("policies", "%s", f.Path(p))
	}
	for _, name := range slices.Sorted(maps.Keys(f.Agents.Guests)) {
		line("guest", "%s: %s", name, f.Path(f.Agents.Guests[name].Module))
	}
	addresses, secrets := referencesOf(f)
	for _, address := range addresses {
		line("address", "%s", address)
	}
	for _, name := range secrets {
		line("secret", "%s", name)
	}
}

// describeServer returns the program or the address of a server, and the settings that weaken its sandbox.
func describeServer(s config.Server) string {
	switch {
	case s.Host() != "":
		return "the tools of " + hosttools.Name(s.Host()) + ", by its hook"
	case s.HTTP != nil:
		return withoutQuery(s.HTTP.URL)
	case s.GRPC != nil:
		return "gRPC " + s.GRPC.Target
	case s.Stdio == nil:
		return "-"
	}
	text := "runs " + shellWords(s.Stdio.Command...)
	if s.Stdio.Dir != "" && s.Stdio.Dir != "private" {
		text += ", in " + s.Stdio.Dir
	}
	if len(s.Stdio.Env) > 0 {
		text += ", with " + strings.Join(slices.Sorted(maps.Keys(s.Stdio.Env)), ", ")
	}
	box := s.Stdio.Sandbox
	if box.Mode == "off" {
		text += ", without a sandbox"
	}
	if len(box.Read) > 0 {
		text += ", reads " + strings.Join(box.Read, ", ")
	}
	if len(box.Write) > 0 {
		text += ", writes " + strings.Join(box.Write, ", ")
	}
	return text
}

// withoutQuery returns the scheme, host and path of an address. It omits the other parts, because they may contain
// secrets.
func withoutQuery(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return "an invalid address"
	}
	return u.Scheme + "://" + u.Host + u.EscapedPath()
}

// reference matches a reference, such as ${env:NAME}.
var reference = regexp.MustCompile(`\$\{([a-z]+):([^}]*)\}`)

// referencesOf returns the addresses with a scheme in a configuration. It also returns the variables, files and other
// sources of secrets to which the configuration refers. Both results are sorted.
func referencesOf(f *config.File) (addresses, secrets []string) {
	forEachString(reflect.ValueOf(*f), func(text string) {
		for _, found := range reference.FindAllStringSubmatch(text, -1) {
			secrets = append(secrets, found[1]+" "+found[2])
		}
		if strings.Contains(text, "://") {
			addresses = append(addresses, withoutQuery(reference.ReplaceAllString(text, "secret")))
		}
	})
	slices.Sort(addresses)
	slices.Sort(secrets)
	return slices.Compact(addresses), slices.Compact(secrets)
}

// forEachString calls do with every string in a value, including the keys of maps.
func forEachString(v reflect.Value, do func(string)) {
	switch v.Kind() { //nolint:exhaustive // other kinds contain no strings
	case reflect.String:
		do(v.String())
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			forEachString(v.Elem(), do)
		}
	case reflect.Struct:
		for _, field := range v.Fields() {
			forEachString(field, do)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			forEachString(v.Index(i), do)
		}
	case reflect.Map:
		for entry := v.MapRange(); entry.Next(); {
			forEachString(entry.Key(), do)
			forEachString(entry.Value(), do)
		}
	}
}
