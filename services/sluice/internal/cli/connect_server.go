package cli

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

// connectionRecord is a sign-in at a server in the JSON output.
type connectionRecord struct {
	Server string `json:"server"`
	// Tenant and Person identify the person to whom the account belongs. They are empty if the account belongs to no
	// person. AccountName is the name of the account at the server, or empty if it is not known.
	Tenant          string    `json:"tenant,omitzero"`
	Person          string    `json:"person,omitzero"`
	ForDiscovery    bool      `json:"forDiscovery,omitzero"`
	AccountName     string    `json:"accountName,omitzero"`
	State           string    `json:"state"`
	Issuer          string    `json:"issuer,omitzero"`
	Scopes          []string  `json:"scopes,omitempty"`
	Connected       time.Time `json:"connected,omitzero"`
	ConnectedBy     string    `json:"connectedBy,omitzero"`
	Refreshed       time.Time `json:"refreshed,omitzero"`
	Expires         time.Time `json:"expires,omitzero"`
	HasRefreshToken bool      `json:"hasRefreshToken"`
	Problem         string    `json:"problem,omitzero"`
}

func newConnectionRecord(c *identityv1.Connection) connectionRecord {
	local := func(at *timestamppb.Timestamp) time.Time {
		if at == nil {
			return time.Time{}
		}
		return at.AsTime().Local()
	}
	return connectionRecord{
		Server: c.GetServer(), Tenant: c.GetPerson().GetTenant(), Person: c.GetPerson().GetSubject(), ForDiscovery: c.GetForDiscovery(), AccountName: c.GetAccountName(), State: enum.Name(c.GetState()), Issuer: c.GetIssuer(), Scopes: c.GetScopes(), Connected: local(c.GetConnected()), ConnectedBy: c.GetConnectedBy(),
		Refreshed: local(c.GetRefreshed()), Expires: local(c.GetExpires()), HasRefreshToken: c.GetHasRefreshToken(), Problem: c.GetProblem(),
	}
}

// account describes the owner of the account in a table.
func (c *connectionRecord) account() string {
	switch {
	case c.Person != "" && c.Tenant != authn.HomeTenant:
		return c.Tenant + ": " + c.Person
	case c.Person != "":
		return c.Person
	case c.ForDiscovery:
		return "(lists tools)"
	default:
		return "(all callers)"
	}
}

// withConnections calls do with a client on a new connection, because a person may need several minutes for the sign-in
// between two calls.
func (t *tool) withConnections(ctx context.Context, do func(context.Context, identityv1.ConnectionServiceClient) error) error {
	f, err := t.load()
	if err != nil {
		return err
	}
	return t.withConnectionsOf(ctx, f, do)
}

func (t *tool) withConnectionsOf(ctx context.Context, f *config.File, do func(context.Context, identityv1.ConnectionServiceClient) error) error {
	conn, err := t.dial(f, authv1.Role_ROLE_IDENTITY)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // only the answer matters
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := do(ctx, identityv1.NewConnectionServiceClient(conn)); err != nil {
		return t.explainError(err)
	}
	return nil
}

// connectTimeout is the timeout for a request for which the mesh contacts a server and its authorization server.
const connectTimeout = 40 * time.Second

// serverSignIn is a sign-in at a server.
type serverSignIn struct {
	server string
	// forDiscovery is true if the account is only for listing the server's tools.
	forDiscovery bool
	noBrowser    bool
}

func (t *tool) connect() *cobra.Command {
	var flags serverSignIn
	c := &cobra.Command{
		Use:   "connect SERVER",
		Short: "Sign in at an MCP server that requires OAuth",
		Long: `Sign in at an MCP server that requires OAuth. The configuration of the server must have
` + "`credentials`" + `. The command opens the page of the server's authorization server in your browser.

With ` + "`as: shared`" + `, all callers of the server then use the account with which you sign in, within the
limits of the policy. This is for operators. With ` + "`as: person`" + `, only your agents use your account:
sign in to the mesh first (` + "`sluice login`" + `). These are the agents whose issuer or configured token names
you as the owner, and those with tokens that you create (` + "`token create --use-my-connections`" + `). For
such a server, an operator also connects an account with which the mesh only lists the server's
tools (--discovery).

The mesh stores the tokens encrypted, and refreshes the access token before it expires. No client
receives a token. If the authorization server does not accept the refresh token any more, calls are
refused with an error that names this command.`,
		Example:           "  " + t.self + " connect github\n  " + t.self + " connect github --discovery",
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: t.completeServer,
		RunE: func(c *cobra.Command, given []string) error {
			ctx, cancel := context.WithTimeout(c.Context(), signInTime)
			defer cancel()
			flags.server = given[0]
			return t.connectServer(ctx, flags)
		},
	}
	c.Flags().BoolVar(&flags.noBrowser, "no-browser", false, "print the address of the page instead of opening a browser")
	c.Flags().BoolVar(&flags.forDiscovery, "discovery", false, "connect the account with which the mesh only lists the tools of a server with as: person")
	return c
}

func (t *tool) connectServer(ctx context.Context, at serverSignIn) error {
	var attempt []byte
	code, err := t.openPage(ctx, at.noBrowser, func(redirect string) (request authorizationRequest, err error) {
		err = t.withConnections(ctx, func(ctx context.Context, client identityv1.ConnectionServiceClient) error {
			resp, err := client.StartConnection(ctx, &identityv1.StartConnectionRequest{Server: at.server, RedirectUri: redirect, ForDiscovery: at.forDiscovery})
			request = authorizationRequest{page: resp.GetAuthorizationUrl(), state: resp.GetState(), issuer: resp.GetIssuer(), sendsIssuer: resp.GetSendsIssuer()}
			attempt = resp.GetAttempt()
			return err
		})
		if err != nil {
			return request, err
		}
		return request, checkPage(request.page)
	})
	if err != nil {
		return err
	}
	var connected connectionRecord
	err = t.withConnections(ctx, func(ctx context.Context, client identityv1.ConnectionServiceClient) error {
		resp, err := client.FinishConnection(ctx, &identityv1.FinishConnectionRequest{Attempt: attempt, Code: code})
		connected = newConnectionRecord(resp.GetConnection())
		return err
	})
	if err != nil {
		return err
	}
	return t.printConnected(connected)
}

func (t *tool) printConnected(c connectionRecord) error {
	if t.json() {
		return t.printJSON(c)
	}
	switch {
	case c.Person != "":
		t.printf("connected: the agents that work for %s use your account at %s", c.Person, c.Server)
	case c.ForDiscovery:
		t.printf("connected: the mesh lists the tools of %s", c.Server)
	default:
		t.printf("connected: the mesh is signed in at %s", c.Server)
	}
	switch {
	case c.AccountName != "":
		t.printf("signed in as: %s", safetext.Escape(c.AccountName))
	default:
		t.printf("signed in as: the authorization server has not named the account; check on its page that it is the right one")
	}
	switch {
	case len(c.Scopes) > 0:
		t.printf("scopes: %s", strings.Join(c.Scopes, " "))
	default:
		t.printf("scopes: the authorization server has named none")
	}
	if !c.HasRefreshToken && !c.Expires.IsZero() {
		t.printf("the authorization server has issued no refresh token: connect the server again before %s", c.Expires.Format(time.DateTime))
	}
	return nil
}

func (t *tool) disconnect() *cobra.Command {
	var person, tenant string
	var forDiscovery bool
	c := &cobra.Command{
		Use:   "disconnect SERVER",
		Short: "Delete the tokens with which the mesh calls a server",
		Long: `Delete the tokens with which the mesh calls a server. With ` + "`as: person`" + `, these are the tokens of your
own account. Operators can delete the tokens of other people (--person). Within a minute, gateways
stop using the access token, and end the streams that they have opened with it. The command does
not revoke the tokens at the authorization server: you can do this in the settings of your
account there.`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: t.completeServer,
		RunE: func(c *cobra.Command, given []string) error {
			req := &identityv1.DeleteConnectionRequest{Server: given[0], ForDiscovery: forDiscovery}
			if person != "" {
				req.Person = &identityv1.Person{Tenant: tenant, Subject: person}
			}
			err := t.withConnections(c.Context(), func(ctx context.Context, client identityv1.ConnectionServiceClient) error {
				_, err := client.DeleteConnection(ctx, req)
				return err
			})
			if err != nil {
				return err
			}
			if t.json() {
				return t.printJSON(map[string]string{"disconnected": given[0]})
			}
			t.printf("disconnected: the tokens for %s are deleted", safetext.Line(given[0]))
			return nil
		},
	}
	c.Flags().StringVar(&person, "person", "", "delete the tokens of this person instead of your own")
	c.Flags().StringVar(&tenant, "tenant", authn.HomeTenant, "tenant of the person")
	c.Flags().BoolVar(&forDiscovery, "discovery", false, "delete the tokens with which the mesh only lists the tools of the server")
	c.MarkFlagsMutuallyExclusive("person", "discovery")
	return c
}

func (t *tool) connections() *cobra.Command {
	return &cobra.Command{
		Use:   "connections",
		Short: "List the servers at which the mesh signs in, and whether it is signed in",
		Long: `List the servers at which the mesh signs in, and whether it is signed in. The list contains your own
connections. Operators also see the connections of other people.`,
		Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			all := []connectionRecord{}
			err := t.withConnections(c.Context(), func(ctx context.Context, client identityv1.ConnectionServiceClient) error {
				listed, err := listConnections(ctx, client)
				for _, one := range listed {
					all = append(all, newConnectionRecord(one))
				}
				return err
			})
			if err != nil {
				return err
			}
			return t.printConnections(all)
		},
	}
}

// listConnections returns all connections that the caller may see.
func listConnections(ctx context.Context, client identityv1.ConnectionServiceClient) (all []*identityv1.Connection, err error) {
	req := new(identityv1.ListConnectionsRequest)
	for {
		resp, err := client.ListConnections(ctx, req)
		if err != nil {
			return all, err
		}
		all = append(all, resp.GetConnections()...)
		if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
			return all, nil
		}
	}
}

func (t *tool) printConnections(all []connectionRecord) error {
	if t.json() {
		return t.printJSON(all)
	}
	rows := make([][]string, len(all))
	for i, one := range all {
		rows[i] = []string{one.Server, one.account(), orDash(safetext.Escape(one.AccountName)), one.State, orDash(one.Issuer), orDash(one.ConnectedBy), orDash(tokenTime(one.Connected)), orDash(tokenTime(one.Refreshed)), orDash(tokenTime(one.Expires))}
	}
	if err := t.table([]string{"SERVER", "ACCOUNT", "SIGNED IN AS", "STATE", "ISSUER", "CONNECTED BY", "CONNECTED", "REFRESHED", "EXPIRES"}, rows); err != nil {
		return err
	}
	for _, one := range all {
		if one.Problem != "" {
			_ = oneLine(t.errOut, "%s: %s: %s", one.Server, one.account(), one.Problem)
		}
	}
	return nil
}

// checkConnections checks whether the mesh is signed in at the servers that require OAuth. It returns no results if the
// identity service does not respond, because another check reports this.
func (t *tool) checkConnections(ctx context.Context, f *config.File) (out []checkResult) {
	hasCredentials := func(s config.Server) bool { return s.Credentials != nil }
	if !slices.ContainsFunc(slices.Collect(maps.Values(f.Servers)), hasCredentials) {
		return nil
	}
	_ = t.withConnectionsOf(ctx, f, func(ctx context.Context, client identityv1.ConnectionServiceClient) error {
		all, err := listConnections(ctx, client)
		for _, c := range all {
			out = append(out, t.checkConnection(c))
		}
		return err
	})
	return out
}

func (t *tool) checkConnection(c *identityv1.Connection) checkResult {
	subject, problem, connect := "server "+c.GetServer(), safetext.Line(c.GetProblem()), "connect "+shellWords(c.GetServer())
	effect := "calls are refused"
	switch {
	case c.GetPerson() != nil:
		subject += ", account of " + safetext.Line(c.GetPerson().GetSubject())
		effect = "the calls of this person's agents are refused"
	case c.GetForDiscovery():
		connect += " --discovery"
		effect = "its tools can't be listed, and calls are refused"
	}
	isConnected := c.GetState() == identityv1.ConnectionState_CONNECTION_STATE_CONNECTED
	switch {
	case !isConnected && c.GetPerson() != nil: // only this person can sign in again
		return checkResult{stateWarning, subject, "the sign-in has ended, so " + effect + ": " + problem, "ask the person to sign in again with " + t.command(connect)}
	case !isConnected && problem == "":
		return checkResult{stateProblem, subject, "the mesh is not signed in at the server, so " + effect, "sign in with " + t.command(connect)}
	case !isConnected:
		return checkResult{stateProblem, subject, "the mesh can't call the server: " + problem, "sign in again with " + t.command(connect)}
	case problem != "":
		return checkResult{stateWarning, subject, "its access token could not be refreshed: " + problem, "check that the identity service can reach " + safetext.Line(c.GetIssuer())}
	case !c.GetHasRefreshToken() && c.GetExpires() != nil:
		return checkResult{stateWarning, subject, "its access token expires at " + tokenTime(c.GetExpires().AsTime().Local()) + ", and there is no refresh token", "sign in again before that with " + t.command(connect)}
	default:
		return checkResult{State: stateOK, Subject: subject, Result: "the mesh is signed in"}
	}
}
