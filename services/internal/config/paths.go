package config

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
)

// SecretPaths returns the absolute paths of the files and directories that only the mesh may read: the configuration
// file, the keys of the mesh's certificates, the service account's token for Vault, and the files to which secrets in the
// configuration refer. The data directory itself is not included. A path need not exist.
func (f *File) SecretPaths() []string {
	paths := []string{f.path, f.TLS.Dir, f.ListenTLS.Key}
	if k := f.Secrets.Vault.Kubernetes; k != nil {
		paths = append(paths, k.TokenFile)
	}
	for _, secret := range secretsIn(reflect.ValueOf(f).Elem()) {
		for _, ref := range referencePattern.FindAllStringSubmatch(string(secret), -1) {
			if ref[1] == "file" {
				paths = append(paths, ref[2])
			}
		}
	}
	return f.absolutePaths(paths)
}

// SecretPrograms returns the absolute paths of the programs in `secrets.commands`, and of the files among their arguments,
// such as scripts. No other program may change them. Programs and files that do not exist are omitted.
func (f *File) SecretPrograms() []string {
	var paths []string
	for _, c := range f.Secrets.Commands {
		for i, arg := range c.Command {
			path := f.Path(arg)
			if found, err := exec.LookPath(arg); i == 0 && err == nil {
				path = found
			}
			if info, err := os.Stat(path); arg != "" && err == nil && info.Mode().IsRegular() {
				paths = append(paths, path)
			}
		}
	}
	return f.absolutePaths(paths)
}

// inStore is an entry of `policies`. It means that the policy documents are in the policy service's store.
const inStore = "store"

// PoliciesInStore reports whether the policy documents are in the store of the policy service instead of in files.
func (f *File) PoliciesInStore() bool { return len(f.Policies) == 1 && f.Policies[0] == inStore }

// PolicyFiles returns the entries of `policies` that name files and directories, exactly as they are in the file.
func (f *File) PolicyFiles() []string {
	if f.PoliciesInStore() {
		return nil
	}
	return f.Policies
}

// PolicyPaths returns the absolute paths of the files and directories with policies.
func (f *File) PolicyPaths() []string { return f.absolutePaths(f.PolicyFiles()) }

// absolutePaths returns the paths as clean absolute paths, without duplicates or empty paths.
func (f *File) absolutePaths(paths []string) []string {
	var out []string
	for _, path := range paths {
		if path == "" {
			continue
		}
		path = f.Path(path)
		if abs, err := filepath.Abs(path); err == nil {
			path = abs
		}
		out = append(out, path)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// secretsIn returns all secrets in a part of the configuration.
func secretsIn(part reflect.Value) []Secret {
	if part.Type() == reflect.TypeFor[Secret]() {
		return []Secret{Secret(part.String())}
	}
	var found []Secret
	switch part.Kind() { //nolint:exhaustive // no other kind of value in the file contains other values
	case reflect.Struct:
		for kind, field := range part.Fields() {
			if kind.Type == reflect.TypeFor[*secretSources]() {
				continue // it contains no references
			}
			found = append(found, secretsIn(field)...)
		}
	case reflect.Pointer:
		if !part.IsNil() {
			found = secretsIn(part.Elem())
		}
	case reflect.Slice:
		for i := range part.Len() {
			found = append(found, secretsIn(part.Index(i))...)
		}
	case reflect.Map:
		for _, key := range part.MapKeys() {
			found = append(found, secretsIn(part.MapIndex(key))...)
		}
	}
	return found
}
