package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway"
	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/loopback"
	"github.com/sluice-mesh/sluice/services/internal/pki"
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
	"github.com/sluice-mesh/sluice/services/policy"
)

func (t *tool) configCommand() *cobra.Command {
	return group("config", "Check the configuration", t.configCheck())
}

// checked is what would run, as JSON. It has no secrets.
type checked struct {
	File     string   `json:"file"`
	Listen   string   `json:"listen"`
	GRPC     string   `json:"grpc,omitzero"`
	Apart    bool     `json:"apart"`
	Data     string   `json:"data"`
	TLS      string   `json:"tls,omitzero"`
	Journal  string   `json:"journalSync"`
	Tokens   []string `json:"tokens"`
	Groups   []string `json:"groups"`
	Servers  []string `json:"servers"`
	Policies []string `json:"policies"`
	// Sandboxes says what the kernel would enforce here for stdio servers.
	Sandboxes map[string]sandbox.Report `json:"sandboxes,omitempty"`
	Warnings  []string                  `json:"warnings"`
}

func (t *tool) configCheck() *cobra.Command {
	return &cobra.Command{
		Use: "check", Short: "Check the configuration, its secrets and its policies, and show what would run",
		Long: `Check the configuration, its secrets and its policies, and show what would run. Without
--config the command reads sluice.yaml of the working folder, as up does. Nothing is started
or sent.`,
		Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			f, _, err := t.loadHere()
			if err != nil {
				return err
			}
			warnings, err := resolveAll(f, inventoryOf(c.Context(), f))
			if err != nil {
				return err
			}
			sandboxes, err := t.sandboxesOf(f)
			if err != nil {
				return err
			}
			return t.printChecked(f, sandboxes, append(f.Warnings(), warnings...))
		},
	}
}

// resolveAll does what the roles do when they start, without starting: it resolves secrets, and loads the policies and,
// if the roles share a process, the certificates. The warnings include names in policies that are not in the inventory.
func resolveAll(f *config.File, inventory map[string][]string) (warnings []string, err error) {
	decides, perr := policy.FromFile(f, app.Env)
	serves, gerr := gateway.FromFile(f, app.Env)
	warnings = append(serves.MissingPrograms(app.Env), serves.Installs(app.Env)...)
	errs := []error{perr, checkTokens(decides.Tokens), gerr, checkGRPC(f), checkMCP(f)}
	said, err := checkPolicies(f, inventory)
	return append(warnings, said...), errors.Join(append(errs, err)...)
}

// checkPolicies loads the policy documents of the configuration. A configuration with servers and without a policy is
// an error, because `up` and the policy role do not start with it. Without servers `up` creates a policy.
func checkPolicies(f *config.File, inventory map[string][]string) (warnings []string, err error) {
	if len(f.Policies) == 0 {
		switch {
		case f.Apart(): // the policy role may have a file of its own
			return []string{"no policies are configured: the policy role does not start with this file; name files or folders under `policies`"}, nil
		case len(f.Servers) > 0:
			return nil, errNoPolicies
		default:
			return nil, nil
		}
	}
	paths := make([]string, len(f.Policies))
	for i, p := range f.Policies {
		paths[i] = f.Path(p)
	}
	documents, err := policy.ReadDocuments(paths)
	errs := []error{err}
	for _, found := range append(policy.LintFor(withGenerated(f), documents), policy.UnknownNames(documents, inventory)...) {
		text := placeOf(found) + adviceOf(found)
		if refuses(found) {
			errs = append(errs, errors.New(text))
		} else {
			warnings = append(warnings, text)
		}
	}
	return warnings, errors.Join(errs...)
}

var errNoPolicies = errors.New("no policies are configured, so every call would be refused: name files or folders under `policies`; `policy suggest` writes a first policy for a server")

// inventoryOf returns the servers of the configuration, or those that `up` serves without one, and the tools of each
// that the data folder knows. It does not ask a running mesh.
func inventoryOf(ctx context.Context, f *config.File) map[string][]string {
	known := policy.ListedTools(ctx, f, app.Env)
	names := slices.Collect(maps.Keys(f.Servers))
	if len(names) == 0 && !f.Apart() {
		names = []string{demoName, agentsName}
	}
	out := make(map[string][]string, len(names))
	for _, name := range names {
		out[name] = known[name]
	}
	return out
}

// sandboxesOf tries what the kernel would enforce here for stdio servers.
func (t *tool) sandboxesOf(f *config.File) (map[string]sandbox.Report, error) {
	cfg, err := gateway.FromFile(f, app.Env)
	if err != nil {
		return nil, err
	}
	return gateway.Holds(cfg, t.launcher, app.Env)
}

// checkTokens returns why the policy role would refuse these tokens together.
func checkTokens(records []*identityv1.TokenRecord) error {
	if _, err := authn.NewTokens(records); err != nil {
		return fmt.Errorf("auth.tokens: %w", err)
	}
	return nil
}

// checkGRPC returns why `up` would not serve gRPC. Separate roles have certificates of their own, on their own
// machines.
func checkGRPC(f *config.File) error {
	switch {
	case f.Apart():
		return nil
	case f.TLS.Dir != "":
		_, _, err := pki.Load(f.Path(f.TLS.Dir), authv1.Role_ROLE_GATEWAY)
		return err
	case !loopback.Address(f.GRPC):
		return fmt.Errorf("grpc: %s: plaintext gRPC is served on loopback only: set tls.dir, or listen on 127.0.0.1", f.GRPC)
	default:
		return nil
	}
}

// checkMCP returns why `up` would not serve MCP. If roles are separate, the files are the gateway's.
func checkMCP(f *config.File) error {
	if f.Apart() || f.ListenTLS.Cert == "" {
		return nil
	}
	if _, err := pki.FollowPair(f.Path(f.ListenTLS.Cert), f.Path(f.ListenTLS.Key), slog.New(slog.DiscardHandler)); err != nil {
		return fmt.Errorf("listen_tls: %w", err)
	}
	return nil
}

func (t *tool) printChecked(f *config.File, sandboxes map[string]sandbox.Report, warnings []string) error {
	out := checked{
		File: orDash(f.Name()), Listen: f.Listen, Apart: f.Apart(), Data: f.Path(f.Data), TLS: f.Path(f.TLS.Dir), Journal: f.Journal.Sync,
		Tokens: []string{}, Groups: groupsOf(f), Sandboxes: sandboxes, Warnings: append([]string{}, warnings...), Servers: slices.Sorted(maps.Keys(f.Servers)), Policies: f.Policies,
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
	for _, name := range out.Groups {
		rows = append(rows, []string{"group", name})
	}
	for _, name := range out.Servers {
		rows = append(rows, []string{"server", name})
	}
	for _, alike := range sandbox.Alike(sandboxes) {
		rows = append(rows, []string{"sandbox", strings.Join(alike.Names, ", ") + ": " + alike.Report.String()})
	}
	for _, name := range out.Policies {
		rows = append(rows, []string{"policy", name})
	}
	if len(out.Policies) == 0 {
		none := "none"
		if len(out.Servers) == 0 && !out.Apart {
			none = "none: " + t.command("up") + " makes starter policies in " + filepath.Join(out.Data, "policies")
		}
		rows = append(rows, []string{"policy", none})
	}
	if len(out.Servers) == 0 {
		rows = append(rows, []string{"server", "none: " + t.command("up") + " serves its demo server"})
	}
	for _, text := range out.Warnings {
		rows = append(rows, []string{"warning", text})
	}
	return t.table([]string{"WHAT", "VALUE"}, rows)
}

// groupsOf returns the groups of the configuration and their subjects. It marks subjects without a token, because they
// can't vote.
func groupsOf(f *config.File) []string {
	out := []string{}
	for _, group := range slices.Sorted(maps.Keys(f.Groups)) {
		var people []string
		for _, subject := range f.Groups[group] {
			holds := func(t config.Token) bool { return t.Tenant == "default" && t.Subject == subject }
			if !slices.ContainsFunc(f.Auth.Tokens, holds) {
				subject += " (no token)"
			}
			people = append(people, subject)
		}
		out = append(out, group+": "+strings.Join(people, ", "))
	}
	return out
}
