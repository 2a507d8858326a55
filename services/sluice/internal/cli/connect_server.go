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
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

// connectionRecord is the sign-in of the mesh at a server in the JSON output.
type connectionRecord struct {
	Server          string    `json:"server"`
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
		Server: c.GetServer(), State: enum.Name(c.GetState()), Issuer: c.GetIssuer(), Scopes: c.GetScopes(), Connected: local(c.GetConnected()), ConnectedBy: c.GetConnectedBy(),
		Refreshed: local(c.GetRefreshed()), Expires: local(c.GetExpires()), HasRefreshToken: c.GetHasRefreshToken(), Problem: c.GetProblem(),
	}
}

// withConnections calls the function do with a client that uses a new connection. An operator may need minutes for the
// sign-in between two calls.
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

// connectTimeout is the timeout of a request that makes the mesh send requests to a server and its authorization server.
const connectTimeout = 40 * time.Second

func (t *tool) connect() *cobra.Command {
	var noBrowser bool
	c := &cobra.Command{
		Use:   "connect SERVER",
		Short: "Sign the mesh in at an MCP server that requires OAuth",
		Long: `Sign the mesh in at an MCP server that requires OAuth. All callers of the server then use the
account with which you sign in, within the limits of the policy. The configuration of the server
must have ` + "`credentials`" + `. The command opens the page of the server's authorization server in your
browser.

The mesh stores the tokens encrypted, and refreshes the access token before it expires. No client
receives a token. If the authorization server does not accept the refresh token any more, calls are
refused with an error that names this command.`,
		Example:           "  " + t.self + " connect github",
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: t.completeServer,
		RunE: func(c *cobra.Command, given []string) error {
			ctx, cancel := context.WithTimeout(c.Context(), signInTime)
			defer cancel()
			return t.connectServer(ctx, given[0], noBrowser)
		},
	}
	c.Flags().BoolVar(&noBrowser, "no-browser", false, "print the address of the page instead of opening a browser")
	return c
}

func (t *tool) connectServer(ctx context.Context, server string, noBrowser bool) error {
	var attempt []byte
	code, err := t.openPage(ctx, noBrowser, func(redirect string) (request authorizationRequest, err error) {
		err = t.withConnections(ctx, func(ctx context.Context, client identityv1.ConnectionServiceClient) error {
			resp, err := client.StartConnection(ctx, &identityv1.StartConnectionRequest{Server: server, RedirectUri: redirect})
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
	t.printf("connected: the mesh is signed in at %s", c.Server)
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
	return &cobra.Command{
		Use:   "disconnect SERVER",
		Short: "Delete the tokens with which the mesh calls a server",
		Long: `Delete the tokens with which the mesh calls a server. Gateways stop using the access token within
a minute. The command does not revoke the tokens at the authorization server: you can do this in
the settings of your account there.`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: t.completeServer,
		RunE: func(c *cobra.Command, given []string) error {
			err := t.withConnections(c.Context(), func(ctx context.Context, client identityv1.ConnectionServiceClient) error {
				_, err := client.DeleteConnection(ctx, &identityv1.DeleteConnectionRequest{Server: given[0]})
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
}

func (t *tool) connections() *cobra.Command {
	return &cobra.Command{
		Use:   "connections",
		Short: "List the servers at which the mesh signs in, and whether it is signed in",
		Args:  args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			all := []connectionRecord{}
			err := t.withConnections(c.Context(), func(ctx context.Context, client identityv1.ConnectionServiceClient) error {
				resp, err := client.ListConnections(ctx, new(identityv1.ListConnectionsRequest))
				for _, one := range resp.GetConnections() {
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

func (t *tool) printConnections(all []connectionRecord) error {
	if t.json() {
		return t.printJSON(all)
	}
	rows := make([][]string, len(all))
	for i, one := range all {
		rows[i] = []string{one.Server, one.State, orDash(one.Issuer), orDash(one.ConnectedBy), orDash(tokenTime(one.Connected)), orDash(tokenTime(one.Refreshed)), orDash(tokenTime(one.Expires))}
	}
	if err := t.table([]string{"SERVER", "STATE", "ISSUER", "CONNECTED BY", "CONNECTED", "REFRESHED", "EXPIRES"}, rows); err != nil {
		return err
	}
	for _, one := range all {
		if one.Problem != "" {
			_ = oneLine(t.errOut, "%s: %s", one.Server, one.Problem)
		}
	}
	return nil
}

// checkConnections checks whether the mesh is signed in at the servers that require OAuth. If the identity service does
// not respond, another check reports this.
func (t *tool) checkConnections(ctx context.Context, f *config.File) (out []checkResult) {
	hasCredentials := func(s config.Server) bool { return s.Credentials != nil }
	if !slices.ContainsFunc(slices.Collect(maps.Values(f.Servers)), hasCredentials) {
		return nil
	}
	_ = t.withConnectionsOf(ctx, f, func(ctx context.Context, client identityv1.ConnectionServiceClient) error {
		resp, err := client.ListConnections(ctx, new(identityv1.ListConnectionsRequest))
		for _, c := range resp.GetConnections() {
			of, problem := "server "+c.GetServer(), safetext.Line(c.GetProblem())
			switch {
			case c.GetState() != identityv1.ConnectionState_CONNECTION_STATE_CONNECTED && problem == "":
				out = append(out, checkResult{stateProblem, of, "the mesh is not signed in at the server, so calls are refused", "sign in with " + t.command("connect "+shellWords(c.GetServer()))})
			case c.GetState() != identityv1.ConnectionState_CONNECTION_STATE_CONNECTED:
				out = append(out, checkResult{stateProblem, of, "the mesh can't call the server: " + problem, "sign in again with " + t.command("connect "+shellWords(c.GetServer()))})
			case problem != "":
				out = append(out, checkResult{stateWarning, of, "its access token could not be refreshed: " + problem, "check that the identity service can reach " + safetext.Line(c.GetIssuer())})
			case !c.GetHasRefreshToken() && c.GetExpires() != nil:
				out = append(out, checkResult{stateWarning, of, "its access token expires at " + tokenTime(c.GetExpires().AsTime().Local()) + ", and there is no refresh token", "sign in again before that with " + t.command("connect "+shellWords(c.GetServer()))})
			default:
				out = append(out, checkResult{State: stateOK, Subject: of, Result: "the mesh is signed in"})
			}
		}
		return err
	})
	return out
}
