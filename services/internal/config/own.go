package config

import (
	"path/filepath"
	"reflect"
	"slices"
)

// OwnSecrets returns the files and folders that only the mesh may read, in addition to its data: the configuration
// file, its certificates and the files that its secrets refer to, as absolute paths. A path need not exist.
func (f *File) OwnSecrets() []string {
	paths := []string{f.path, f.TLS.Dir, f.ListenTLS.Key}
	for _, secret := range secretsIn(reflect.ValueOf(f).Elem()) {
		for _, ref := range reference.FindAllStringSubmatch(string(secret), -1) {
			if ref[1] == "file" {
				paths = append(paths, ref[2])
			}
		}
	}
	return f.absolute(paths)
}

// OwnDocuments returns the files and folders of the policies, as absolute paths.
func (f *File) OwnDocuments() []string { return f.absolute(f.Policies) }

// absolute returns clean absolute paths, each once, without empty ones.
func (f *File) absolute(paths []string) []string {
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

// secretsIn returns all secrets of a part of the configuration.
func secretsIn(part reflect.Value) []Secret {
	if part.Type() == reflect.TypeFor[Secret]() {
		return []Secret{Secret(part.String())}
	}
	var found []Secret
	switch part.Kind() { //nolint:exhaustive // the file has parts of no other kind that hold others
	case reflect.Struct:
		for _, field := range part.Fields() {
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
