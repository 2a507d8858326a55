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
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway"
	"github.com/sluice-mesh/sluice/services/identity"
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

// checkOutput is the JSON output of `config check`. It contains no secrets.
type checkOutput struct {
	File          string   `json:"file"`
	Listen        string   `json:"listen"`
	GRPC          string   `json:"grpc,omitzero"`
	SeparateRoles bool     `json:"apart"`
	Data          string   `json:"data"`
	TLS           string   `json:"tls,omitzero"`
	Journal       string   `json:"journalSync"`
	Tokens        []string `json:"tokens"`
	Groups        []string `json:"groups"`
	Servers       []string `json:"servers"`
	Policies      []string `json:"policies"`
	// Sandboxes contains the restrictions that the kernel of this machine would enforce for stdio servers.
	Sandboxes map[string]sandbox.Report `json:"sandboxes,omitempty"`
	Warnings  []string                  `json:"warnings"`
}

func (t *tool) configCheck() *cobra.Command {
	return &cobra.Command{
		Use: "check", Short: "Check the configuration, its secrets and its policies, and show what would run",
		Long: `Check the configuration, its secrets and its policies, and show what would run. Without
--config, read sluice.yaml in the working folder, as up does. The command starts no server. It
runs the commands of secrets.commands, and asks Vault for secrets, but sends nothing else over the
network. For a sluice.yaml with such secrets that it found by itself, it first needs your agreement,
which "sluice up" asks for.`,
		Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			f, found, err := t.loadLocal()
			if err != nil {
				return err
			}
			if err := found.requireAgreement(); err != nil {
				return err
			}
			warnings, err := resolveAll(f, toolListsOf(c.Context(), f))
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

// resolveAll makes the checks that the mesh services make when they start. It resolves secrets and loads the policies.
// If all services run in one process, it also loads the certificates. The warnings include warnings about policies that
// do not fit the given tools of the servers.
func resolveAll(f *config.File, lists policy.ToolLists) (warnings []string, err error) {
	decides, perr := policy.FromFile(f, app.Env)
	if perr == nil {
		perr = decides.Validate()
	}
	identifies, ierr := identity.FromFile(f, app.Env)
	if ierr == nil {
		ierr = identifies.Validate()
	}
	serves, gerr := gateway.FromFile(f, app.Env)
	warnings = slices.Concat(serves.MissingPrograms(app.Env), serves.InstallationNotes(app.Env), serves.HomeNotes(app.Env))
	errs := []error{perr, ierr, checkTokens(identifies.Tokens), gerr, checkGRPC(f), checkMCP(f)}
	policyWarnings, err := checkPolicies(f, lists)
	return append(warnings, policyWarnings...), errors.Join(append(errs, err)...)
}

// checkPolicies loads the policy documents in the configuration. If the configuration has servers but no policies, it
// returns an error, because `up` does not start with such a configuration. If the configuration has neither servers nor
// policies, `up` creates a policy. If the mesh services run in separate processes and the configuration has no
// policies, checkPolicies returns a warning instead of an error.
func checkPolicies(f *config.File, lists policy.ToolLists) (warnings []string, err error) {
	if f.PoliciesInStore() { // the documents in the store were checked when they were applied
		return nil, nil
	}
	if len(f.Policies) == 0 {
		switch {
		case f.HasSeparateRoles(): // the policy role may use another file
			return []string{"no policies are configured, so the policy role does not start with this file: name files or folders under `policies`"}, nil
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
	for _, found := range policy.LintLists(documents, lists) {
		if found.GetSeverity() != policyv1.Severity_SEVERITY_INFO {
			warnings = append(warnings, findingPosition(found)+findingText(found))
		}
	}
	for _, found := range policy.LintFor(withGeneratedTokens(f), documents) {
		text := findingPosition(found) + findingText(found)
		if blocksLoading(found) {
			errs = append(errs, errors.New(text))
		} else {
			warnings = append(warnings, text)
		}
	}
	return warnings, errors.Join(errs...)
}

var errNoPolicies = errors.New("no policies are configured, so every call would be refused: name files or folders under `policies`; `policy suggest` writes a first policy for a server")

// toolListsOf reads each server's tools from the data directory. If the configuration has no servers and all mesh
// services run in one process, it returns the tools of the servers that `up` adds. It sends no request to a running
// mesh.
func toolListsOf(ctx context.Context, f *config.File) policy.ToolLists {
	listed := policy.ListedTools(ctx, f, app.Env)
	names := slices.Collect(maps.Keys(f.Servers))
	if len(names) == 0 && !f.HasSeparateRoles() {
		names = []string{demoName, agentsName}
	}
	out := policy.ToolLists{Tools: make(map[string][]policy.ListedTool, len(names)), Schema: listed.Schema, Unusable: listed.Unusable}
	for _, name := range names {
		out.Tools[name] = listed.Tools[name]
	}
	return out
}

// sandboxesOf returns the restrictions that the kernel of this machine would enforce for each stdio server.
func (t *tool) sandboxesOf(f *config.File) (map[string]sandbox.Report, error) {
	cfg, err := gateway.FromFile(f, app.Env)
	if err != nil {
		return nil, err
	}
	return gateway.SandboxReports(cfg, t.launcher, app.Env)
}

// checkTokens returns an error if the identity service would refuse the tokens, for example because two of them have
// the same secret.
func checkTokens(records []*identityv1.TokenRecord) error {
	if _, err := authn.NewTokens(records); err != nil {
		return fmt.Errorf("auth.tokens: %w", err)
	}
	return nil
}

// checkGRPC returns an error if `up` could not serve gRPC. If the mesh services run in separate processes, it returns
// nil, because the services' certificates may be on other machines.
func checkGRPC(f *config.File) error {
	switch {
	case f.HasSeparateRoles():
		return nil
	case f.TLS.Dir != "":
		_, _, err := pki.Load(f.Path(f.TLS.Dir), authv1.Role_ROLE_GATEWAY)
		return err
	case !loopback.Address(f.GRPC):
		return fmt.Errorf("grpc: %s is not on loopback, and gRPC without TLS is served on loopback only: set tls.dir, or set grpc to an address on 127.0.0.1", f.GRPC)
	default:
		return nil
	}
}

// checkMCP returns an error if `up` could not serve MCP. If the mesh services run in separate processes, it returns
// nil, because the gateway's files may be on another machine.
func checkMCP(f *config.File) error {
	if f.HasSeparateRoles() || f.ListenTLS.Cert == "" {
		return nil
	}
	if _, err := pki.WatchPair(f.Path(f.ListenTLS.Cert), f.Path(f.ListenTLS.Key), slog.New(slog.DiscardHandler)); err != nil {
		return fmt.Errorf("listen_tls: %w", err)
	}
	return nil
}

func (t *tool) printChecked(f *config.File, sandboxes map[string]sandbox.Report, warnings []string) error {
	out := checkOutput{
		File: orDash(f.Name()), Listen: f.Listen, SeparateRoles: f.HasSeparateRoles(), Data: f.Path(f.Data), TLS: f.Path(f.TLS.Dir), Journal: f.Journal.Sync,
		Tokens: []string{}, Groups: groupsOf(f), Sandboxes: sandboxes, Warnings: append([]string{}, warnings...), Servers: slices.Sorted(maps.Keys(f.Servers)), Policies: f.Policies,
	}
	if !f.HasSeparateRoles() {
		out.GRPC = f.GRPC
	}
	for _, token := range f.Auth.Tokens {
		out.Tokens = append(out.Tokens, token.Name+" ("+token.Role+")")
	}
	if t.json() {
		return t.printJSON(out)
	}
	rows := [][]string{
		{"file", out.File}, {"listen", out.Listen}, {"grpc", orDash(out.GRPC)}, {"roles apart", strconv.FormatBool(out.SeparateRoles)},
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
	for _, alike := range sandbox.GroupByReport(sandboxes) {
		rows = append(rows, []string{"sandbox", strings.Join(alike.Names, ", ") + ": " + alike.Report.String()})
	}
	for _, name := range out.Policies {
		rows = append(rows, []string{"policy", name})
	}
	if len(out.Policies) == 0 {
		none := "none"
		if len(out.Servers) == 0 && !out.SeparateRoles {
			none = "none: " + t.command("up") + " creates starter policies in " + filepath.Join(out.Data, "policies")
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

// groupsOf describes each group in the configuration and its members. It marks members without a token, because they
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
