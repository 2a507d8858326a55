package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
)

// defaultTimeout is the timeout of a call to a server whose entry does not set a timeout.
const defaultTimeout = 60 * time.Second

// progressFactor and maxProgress set the default of max_timeout, the maximum duration of a call whose server reports
// progress. The default is progressFactor times the timeout, but at most maxProgress.
const (
	progressFactor = 10
	maxProgress    = time.Hour
)

// AgentTimeout is the timeout of a call to the mesh's own agents if the server's entry does not set a timeout. It is
// longer than defaultTimeout, because agents may call models and sleep.
const AgentTimeout = 15 * time.Minute

// Load returns the configuration in the file at path, with defaults for missing keys, and validates it. The
// environment's SLUICE_… variables override the file. If path is empty, Load reads no file. The error contains every
// problem with its position.
func Load(path string, env Env) (*File, error) {
	if path == "" {
		f := Default()
		return f.applyEnv(nil, env)
	}
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the configuration %s does not exist: name another with --config", path)
	}
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	return Parse(path, raw, env)
}

// Parse is like [Load], but uses raw instead of reading the file at path.
func Parse(path string, raw []byte, env Env) (*File, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("find the configuration %s: %w", path, err)
	}
	source, err := strictyaml.Parse(path, raw)
	if err != nil {
		return nil, err
	}
	f := Default()
	f.path = abs
	if err := source.Decode(&f); err != nil {
		return nil, err
	}
	return f.applyEnv(source, env)
}

func (f *File) applyEnv(source *strictyaml.Source, env Env) (*File, error) {
	set, err := f.override(env)
	if err != nil {
		return nil, err
	}
	f.setDefaults()
	f.sources = newSecretSources(f, env)
	if err := set.locate(f.problems(), source); err != nil {
		return nil, err
	}
	return f, nil
}

// variables maps the path of a key to the environment variable that has set the key.
type variables map[string]string

// locate adds a position to each problem: the variable that set the key, or the line of the file if no variable set it.
// If there is no file, the problem stays unchanged.
func (v variables) locate(problems []Problem, source *strictyaml.Source) error {
	errs := make([]error, len(problems))
	for i, p := range problems {
		switch name, set := v[p.Path]; {
		case set:
			errs[i] = fmt.Errorf("the environment variable %s: %w", name, p)
		case source != nil:
			errs[i] = source.Problem(p.Path, p.Text, "")
		default:
			errs[i] = p
		}
	}
	return errors.Join(errs...)
}

func (f *File) setDefaults() {
	f.separateRoles = len(f.Roles) > 0
	if f.Roles == nil {
		f.Roles = make(map[string]Role)
	}
	for name, standard := range defaultRoles() {
		role := f.Roles[name]
		role.Listen = cmp.Or(role.Listen, standard.Listen)
		role.Addr = cmp.Or(role.Addr, standard.Addr)
		f.Roles[name] = role
	}
	for i := range f.Auth.Tokens {
		t := &f.Auth.Tokens[i]
		t.Tenant = cmp.Or(t.Tenant, "default")
		t.Subject = cmp.Or(t.Subject, t.Name)
	}
	for i := range f.Auth.Issuers {
		f.Auth.Issuers[i].setDefaults()
	}
	f.Secrets.setDefaults()
	f.addHosts()
	for name, s := range f.Servers {
		if s.GRPC != nil && IsAgentService(s.GRPC.Target) {
			s.Timeout = cmp.Or(s.Timeout, AgentTimeout)
		}
		s.Timeout = cmp.Or(s.Timeout, defaultTimeout)
		s.MaxTimeout = cmp.Or(s.MaxTimeout, max(s.Timeout, min(progressFactor*s.Timeout, maxProgress)))
		if s.Stdio != nil {
			s.Stdio.Per = cmp.Or(s.Stdio.Per, "principal")
			s.Stdio.Dir = cmp.Or(s.Stdio.Dir, "private")
			s.Stdio.Install = cmp.Or(s.Stdio.Install, "once")
			s.Stdio.Limits.Tasks = cmp.Or(s.Stdio.Limits.Tasks, defaultTasks)
			s.Stdio.Limits.Memory = cmp.Or(s.Stdio.Limits.Memory, defaultMemory)
			s.Stdio.Limits.Disk = cmp.Or(s.Stdio.Limits.Disk, defaultDisk)
			s.Stdio.Processes = cmp.Or(s.Stdio.Processes, defaultProcesses)
			s.Stdio.Sandbox.Mode = cmp.Or(s.Stdio.Sandbox.Mode, "auto")
			if s.Stdio.Sandbox.Network == nil {
				s.Stdio.Sandbox.Network = new(true)
			}
		}
		f.Servers[name] = s
	}
}

// override sets every scalar key whose variable is set. The name of the variable is SLUICE_ followed by the key's path
// in upper case, joined by underscores. An example is SLUICE_TELEMETRY_SAMPLE.
func (f *File) override(env Env) (variables, error) {
	set := make(variables)
	return set, set.override(reflect.ValueOf(f).Elem(), "", env)
}

func (v variables) override(part reflect.Value, path string, env Env) error {
	for i := range part.NumField() {
		key := part.Type().Field(i).Tag.Get("yaml")
		if key == "" {
			continue
		}
		key = strings.TrimPrefix(path+"."+key, ".")
		field := part.Field(i)
		if field.Kind() == reflect.Struct {
			if err := v.override(field, key, env); err != nil {
				return err
			}
			continue
		}
		name := "SLUICE_" + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
		text, ok := env(name)
		if !ok || text == "" {
			continue
		}
		if !isScalar(field) {
			continue // only the file sets these keys, because cluster software uses variables with these names
		}
		if err := setScalar(field, text); err != nil {
			return fmt.Errorf("the environment variable %s: %w", name, err)
		}
		v[key] = name
	}
	return nil
}

func isScalar(field reflect.Value) bool {
	return field.Kind() != reflect.Slice && field.Kind() != reflect.Map && field.Kind() != reflect.Pointer
}

func setScalar(field reflect.Value, text string) error {
	if field.Type() == reflect.TypeFor[time.Duration]() {
		d, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("%q is not a duration such as 30s", text)
		}
		field.SetInt(int64(d))
		return nil
	}
	switch field.Kind() { //nolint:exhaustive // no key of the file has another kind
	case reflect.String:
		field.SetString(text)
	case reflect.Int, reflect.Int64:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return fmt.Errorf("%q is not a whole number", text)
		}
		field.SetInt(n)
	case reflect.Float64:
		x, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Errorf("%q is not a number", text)
		}
		field.SetFloat(x)
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("%q is not true or false", text)
		}
		field.SetBool(b)
	default:
		return fmt.Errorf("a %s can't be set from text", field.Kind())
	}
	return nil
}
