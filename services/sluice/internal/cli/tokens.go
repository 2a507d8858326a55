package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/enum"
)

const (
	// maxTokenPage is the maximum size of a page of tokens.
	maxTokenPage = 1000
	// maxOverlap limits how long the replaced text of a token stays valid.
	maxOverlap = 7 * 24 * time.Hour
)

// tokenRecord is a token in the JSON output.
type tokenRecord struct {
	ID      string `json:"id"`
	Role    string `json:"role"`
	Tenant  string `json:"tenant"`
	Subject string `json:"subject"`
	Agent   string `json:"agent,omitzero"`
	Issuer  string `json:"issuer,omitzero"`
	Owner   string `json:"owner,omitzero"`
	// UsesConnections is true if the agent uses the owner's connections to servers.
	UsesConnections bool `json:"usesConnections,omitzero"`

	Groups     []string  `json:"groups,omitempty"`
	Servers    []string  `json:"servers,omitempty"`
	Configured bool      `json:"configured,omitzero"`
	Created    time.Time `json:"created,omitzero"`
	CreatedBy  string    `json:"createdBy,omitzero"`
	Expires    time.Time `json:"expires,omitzero"`
	LastUsed   time.Time `json:"lastUsed,omitzero"`
	Revoked    time.Time `json:"revoked,omitzero"`
	RevokedBy  string    `json:"revokedBy,omitzero"`
	AuthTime   time.Time `json:"authTime,omitzero"`
	ACR        string    `json:"acr,omitzero"`
}

func newTokenRecord(t *identityv1.Token) tokenRecord {
	local := func(at *timestamppb.Timestamp) time.Time {
		if at == nil {
			return time.Time{}
		}
		return at.AsTime().Local()
	}
	return tokenRecord{
		ID: t.GetName(), Role: enum.NameOrEmpty(t.GetRole()), Tenant: t.GetTenant(), Subject: t.GetSubject(), Agent: t.GetAgent(), Issuer: t.GetIssuer(), Owner: t.GetOwner(), UsesConnections: t.GetUsesConnections(),
		Groups: t.GetGroups(), Servers: t.GetServers(), Configured: t.GetConfigured(), Created: local(t.GetCreated()), CreatedBy: t.GetCreatedBy(), Expires: local(t.GetExpires()),
		LastUsed: local(t.GetLastUsed()), Revoked: local(t.GetRevoked()), RevokedBy: t.GetRevokedBy(), AuthTime: local(t.GetAuthTime()), ACR: t.GetAcr(),
	}
}

// authentication says when and how a session's person has authenticated at the issuer. It returns "" if this is not
// known.
func (t tokenRecord) authentication() string {
	var parts []string
	if !t.AuthTime.IsZero() {
		parts = append(parts, t.AuthTime.Format(time.DateTime))
	}
	if t.ACR != "" {
		parts = append(parts, "acr "+t.ACR)
	}
	return strings.Join(parts, ", ")
}

// ended returns the reason why a token is not valid any more, or "" if the token is valid.
func (t tokenRecord) ended(now time.Time) string {
	switch {
	case !t.Revoked.IsZero():
		return "revoked " + t.Revoked.Format(time.DateTime) + " by " + cmp.Or(t.RevokedBy, "an operator of another tenant")
	case !t.Expires.IsZero() && !now.Before(t.Expires):
		return "expired"
	default:
		return ""
	}
}

// withIdentity calls do with a client for the identity service.
func (t *tool) withIdentity(ctx context.Context, do func(ctx context.Context, client identityv1.IdentityServiceClient) error) error {
	f, err := t.load()
	if err != nil {
		return err
	}
	return t.withIdentityOf(ctx, f, do)
}

func (t *tool) withIdentityOf(ctx context.Context, f *config.File, do func(ctx context.Context, client identityv1.IdentityServiceClient) error) error {
	conn, err := t.dial(f, authv1.Role_ROLE_IDENTITY)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // only the answer matters
	ctx, cancel := requestContext(ctx)
	defer cancel()
	return do(ctx, identityv1.NewIdentityServiceClient(conn))
}

func (t *tool) rotateToken() *cobra.Command {
	var overlap time.Duration
	var expires, file string
	c := &cobra.Command{
		Use:   "rotate ID",
		Short: "Replace the text of a token, and print the new text once",
		Long: `Replace the text of a token, and print the new text once or write it to a new file. The ID,
rights and age stay the same. The old text stays valid for --overlap. With 0s, all earlier texts
end at once.`,
		Example:           "  " + t.self + " token rotate cursor-x7k2p9 --overlap 1h --file cursor.token",
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: t.completeToken,
		RunE: func(c *cobra.Command, given []string) error {
			req := &identityv1.RotateTokenRequest{Name: given[0], Overlap: durationpb.New(overlap)}
			if overlap < 0 || overlap > maxOverlap {
				return usageError{fmt.Errorf("--overlap: %v is not between 0s and %v", overlap, maxOverlap)}
			}
			if expires != "" {
				at, err := parseExpiry(expires, time.Now())
				if err != nil {
					return usageError{fmt.Errorf("--expires: %w", err)}
				}
				req.Expires = timestamppb.New(at)
			}
			return t.withIdentity(c.Context(), func(ctx context.Context, client identityv1.IdentityServiceClient) error {
				return t.reissueToken(ctx, client, req, file)
			})
		},
	}
	flags := c.Flags()
	flags.DurationVar(&overlap, "overlap", 24*time.Hour, "how long the old text stays valid, at most 168h")
	flags.StringVar(&expires, "expires", "", expiresHelp+" (default: as long from now as before)")
	flags.StringVar(&file, "file", "", "write the token to this new `FILE`, which only you can read")
	return c
}

// reissueToken replaces the secret of a token. Like issueToken, it prints the new secret or writes it to a new file.
func (t *tool) reissueToken(ctx context.Context, client identityv1.IdentityServiceClient, req *identityv1.RotateTokenRequest, path string) error {
	file, err := createTokenFile(path)
	if err != nil {
		return err
	}
	resp, err := client.RotateToken(ctx, req)
	if err != nil {
		return errors.Join(t.explainError(err), file.discard())
	}
	out := createdToken{Token: newTokenRecord(resp.GetToken()), Secret: resp.GetSecret(), UnconfirmedReplicas: resp.GetUnconfirmedReplicas()}
	if resp.GetOldSecretExpires() != nil {
		out.OldExpires = resp.GetOldSecretExpires().AsTime().Local()
	}
	if err := file.write(resp.GetSecret()); err != nil {
		return fmt.Errorf("the text of the token %s was replaced, but can't be written: %w; replace it again", out.Token.ID, err)
	}
	if path != "" {
		out.Secret, out.File = "", path
	}
	if t.json() {
		return t.printJSON(out)
	}
	say := func(format string, args ...any) { _ = oneLine(t.errOut, format, args...) }
	say("replaced: the text of the token %s, which is valid until %s", out.Token.ID, out.Token.Expires.Format(time.DateTime))
	if out.OldExpires.IsZero() {
		say("the old text is not valid any more")
	} else {
		say("the old text stays valid until %s", out.OldExpires.Format(time.DateTime))
	}
	switch n := resp.GetUnconfirmedReplicas(); {
	case n < 0:
		say("it is not known whether all services use the new text already")
	case n > 0:
		say("this is not confirmed by %s: a replica that runs without a connection to the database may accept the old text, and refuse the new one, for at most stores.identity_max_age", identityReplicas(n))
	}
	if path != "" {
		say("the token is in %s, which only you can read", path)
		return nil
	}
	if err := oneLine(t.out, "%s", out.Secret); err != nil {
		return fmt.Errorf("print the token: %w; replace it again with: %s", err, t.command("token rotate "+shellWords(out.Token.ID)))
	}
	say("this is the only time that the token is printed")
	return nil
}

func (t *tool) listTokens() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "list",
		Short: "List the tokens, with their agents, people, expiry and last use",
		Long: `List the valid tokens, including tokens of the configuration and sessions of people, without the
secrets. PERSON holds the token, or is the person for whom the agent works. "with connections"
means that the agent uses this person's connections to servers. The last use is exact to about
a minute, and unknown for tokens of the configuration.`,
		Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			return t.withIdentity(c.Context(), func(ctx context.Context, client identityv1.IdentityServiceClient) error {
				found, err := allTokens(ctx, client, all)
				if err != nil {
					return t.explainError(err)
				}
				return t.printTokens(found, all)
			})
		},
	}
	c.Flags().BoolVar(&all, "all", false, "also list tokens that have expired or were revoked")
	return c
}

// allTokens returns the tokens on all pages, sorted by id.
func allTokens(ctx context.Context, client identityv1.IdentityServiceClient, ended bool) ([]tokenRecord, error) {
	found := []tokenRecord{}
	for page := ""; ; {
		resp, err := client.ListTokens(ctx, &identityv1.ListTokensRequest{PageSize: maxTokenPage, PageToken: page, Ended: ended})
		if err != nil {
			return nil, err
		}
		for _, one := range resp.GetTokens() {
			found = append(found, newTokenRecord(one))
		}
		if page = resp.GetNextPageToken(); page == "" {
			return found, nil
		}
	}
}

func (t *tool) printTokens(all []tokenRecord, ended bool) error {
	if t.json() {
		return t.printJSON(all)
	}
	now, rows := time.Now(), make([][]string, len(all))
	for i, one := range all {
		created, used := tokenTime(one.Created), cmp.Or(tokenTime(one.LastUsed), "never")
		if one.Configured {
			created, used = "configuration", ""
		}
		rows[i] = []string{one.ID, one.Role, orDash(one.Agent), orDash(one.personText()), one.Tenant, created, cmp.Or(tokenTime(one.Expires), "never"), orDash(used)}
		if ended {
			rows[i] = append(rows[i], orDash(one.ended(now)))
		}
	}
	head := []string{"ID", "ROLE", "AGENT", "PERSON", "TENANT", "CREATED", "EXPIRES", "LAST USED"}
	if ended {
		head = append(head, "ENDED")
	}
	return t.table(head, rows)
}

// person returns the subject of the token's holder, or of the person for whom the agent works.
func (t tokenRecord) person() string {
	if t.Role == agentToken {
		return t.Owner
	}
	return t.Subject
}

// personText returns the person of the token, and says whether the agent uses this person's connections to servers.
func (t tokenRecord) personText() string {
	if t.UsesConnections {
		return t.person() + ", with connections"
	}
	return t.person()
}

// tokenTime formats a time. It returns "" for the zero time.
func tokenTime(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.Format(time.DateTime)
}

func (t *tool) revokeToken() *cobra.Command {
	var agent string
	c := &cobra.Command{
		Use:   "revoke (ID | --agent NAME)",
		Short: "Revoke a token, or all tokens of an agent, immediately",
		Long: `Revoke a token, or all tokens of an agent. Once the command returns, no gateway accepts them.
Calls that were already sent end normally. To revoke a token in the configuration, remove it
from the file; no restart is necessary.`,
		Args:              args(cobra.MaximumNArgs(1)),
		ValidArgsFunction: t.completeToken,
		RunE: func(c *cobra.Command, given []string) error {
			req := &identityv1.RevokeTokenRequest{Agent: agent}
			if len(given) > 0 {
				req.Name = given[0]
			}
			if (req.GetName() == "") == (agent == "") {
				return usageError{errors.New("name either the ID of a token or an agent with --agent: " + t.command("token list") + " prints both")}
			}
			return t.withIdentity(c.Context(), func(ctx context.Context, client identityv1.IdentityServiceClient) error {
				resp, err := client.RevokeToken(ctx, req)
				if err != nil {
					return t.explainError(err)
				}
				return t.printRevoked(resp)
			})
		},
	}
	c.Flags().StringVar(&agent, "agent", "", "revoke all tokens of the agent `NAME`")
	return c
}

// printRevoked prints the revoked tokens. It returns an error if the agent has other valid tokens, or if replicas have
// not confirmed the revocation.
func (t *tool) printRevoked(resp *identityv1.RevokeTokenResponse) error {
	all := make([]tokenRecord, len(resp.GetTokens()))
	for i, one := range resp.GetTokens() {
		all[i] = newTokenRecord(one)
	}
	if t.json() {
		if err := t.printJSON(map[string]any{
			"revoked": all, "configured": resp.GetConfigured(), "unconfirmedReplicas": resp.GetUnconfirmedReplicas(),
		}); err != nil {
			return err
		}
	} else {
		for _, one := range all {
			if one.Issuer != "" {
				t.printf("ended: session %s of %s, who can sign in again", one.ID, one.Subject)
				continue
			}
			t.printf("revoked: token %s of the agent %s, which can no longer call tools", one.ID, one.Agent)
		}
	}
	var unconfirmed, stay error
	if n := resp.GetUnconfirmedReplicas(); n > 0 {
		unconfirmed = fmt.Errorf("the tokens are revoked, but this is not confirmed by %s: a replica that runs without a connection to the database accepts the tokens for at most stores.identity_max_age", identityReplicas(n))
	}
	if configured := resp.GetConfigured(); len(configured) > 0 {
		stay = fmt.Errorf("the agent's tokens in the configuration (auth.tokens) stay valid: %s; remove them there, which needs no restart", strings.Join(configured, ", "))
	}
	return errors.Join(unconfirmed, stay)
}

func identityReplicas(n int32) string {
	if n == 1 {
		return "1 replica of the identity role"
	}
	return fmt.Sprintf("%d replicas of the identity role", n)
}

func (t *tool) completeToken(c *cobra.Command, given []string, _ string) (ids []string, _ cobra.ShellCompDirective) {
	if len(given) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	_ = t.withIdentity(c.Context(), func(ctx context.Context, client identityv1.IdentityServiceClient) error {
		all, err := allTokens(ctx, client, false)
		for _, one := range all {
			if !one.Configured {
				ids = append(ids, one.ID)
			}
		}
		return err
	})
	return ids, cobra.ShellCompDirectiveNoFileComp
}
