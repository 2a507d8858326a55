package cli

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/gateway"
	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/pki"
	"github.com/sluice-mesh/sluice/services/policy"
)

func (t *tool) configCommand() *cobra.Command {
	return group("config", "Work with the configuration", t.configCheck())
}

// checked is what would run, as JSON. Secrets are never in it.
type checked struct {
	File     string   `json:"file"`
	Listen   string   `json:"listen"`
	GRPC     string   `json:"grpc,omitzero"`
	Apart    bool     `json:"apart"`
	Data     string   `json:"data"`
	TLS      string   `json:"tls,omitzero"`
	Journal  string   `json:"journal_sync"`
	Tokens   []string `json:"tokens"`
	Servers  []string `json:"servers"`
	Policies []string `json:"policies"`
}

func (t *tool) configCheck() *cobra.Command {
	return &cobra.Command{
		Use: "check", Short: "Check the configuration, its secrets and its policies, and show what would run",
		Args: args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			f, err := t.load()
			if err != nil {
				return err
			}
			if err := resolveAll(f); err != nil {
				return err
			}
			return t.printChecked(f)
		},
	}
}

// resolveAll does what the roles do when they start, short of starting: it
// resolves secrets, loads the policies and, where the roles share a process, the
// certificates.
func resolveAll(f *config.File) error {
	_, perr := policy.FromFile(f, app.Env)
	_, gerr := gateway.FromFile(f, app.Env)
	errs := []error{perr, gerr, checkGRPC(f)}
	if len(f.Policies) > 0 {
		paths := make([]string, len(f.Policies))
		for i, p := range f.Policies {
			paths[i] = f.Path(p)
		}
		documents, err := policy.ReadDocuments(paths)
		errs = append(errs, err)
		for _, found := range policy.Lint(documents) {
			errs = append(errs, errors.New(placeOf(found)+adviceOf(found)))
		}
	}
	return errors.Join(errs...)
}

// checkGRPC says why `up` would not serve gRPC; roles that live apart have each its
// own certificate, on its own machine.
func checkGRPC(f *config.File) error {
	switch {
	case f.Apart():
		return nil
	case f.TLS.Dir != "":
		_, _, err := pki.Load(f.Path(f.TLS.Dir), authv1.Role_ROLE_GATEWAY)
		return err
	case !isLoopback(f.GRPC):
		return fmt.Errorf("grpc: %s: plaintext gRPC is served on loopback only: set tls.dir, or listen on 127.0.0.1", f.GRPC)
	default:
		return nil
	}
}

func (t *tool) printChecked(f *config.File) error {
	out := checked{
		File: orDash(f.Name()), Listen: f.Listen, Apart: f.Apart(), Data: f.Path(f.Data), TLS: f.Path(f.TLS.Dir), Journal: f.Journal.Sync,
		Tokens: []string{}, Servers: slices.Sorted(maps.Keys(f.Servers)), Policies: f.Policies,
	}
	if !f.Apart() {
		out.GRPC = f.GRPC
	}
	for _, token := range f.Auth.Tokens {
		out.Tokens = append(out.Tokens, token.Name+" ("+token.Role+")")
	}
	if t.json() {
		return t.printJSON(out)
	}
	rows := [][]string{
		{"file", out.File}, {"listen", out.Listen}, {"grpc", orDash(out.GRPC)}, {"roles apart", strconv.FormatBool(out.Apart)},
		{"data", out.Data}, {"tls", orDash(out.TLS)}, {"journal.sync", out.Journal},
	}
	for _, name := range out.Tokens {
		rows = append(rows, []string{"token", name})
	}
	for _, name := range out.Servers {
		rows = append(rows, []string{"server", name})
	}
	for _, name := range out.Policies {
		rows = append(rows, []string{"policy", name})
	}
	if len(out.Servers) == 0 {
		rows = append(rows, []string{"server", "none: `sluice up` serves its demo server"})
	}
	return t.table([]string{"WHAT", "VALUE"}, rows)
}
