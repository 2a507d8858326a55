package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

const (
	// defaultTokenLife is how long a token is valid if --expires is not set.
	defaultTokenLife = "90d"
	// maxTokenLife limits how long a token is valid.
	maxTokenLife = 365 * 24 * time.Hour
)

// newTokenFlags contains the flags of `token create`.
type newTokenFlags struct {
	id, owner, subject, tenant, expires, file string
	noOwner, useMyConnections                 bool
	groups, servers                           []string
}

// expiresHelp is the help text of --expires.
const expiresHelp = "the expiry: 12h, 30d or 2026-03-01T12:00:00Z; at most a year from now"

func (t *tool) createToken() *cobra.Command {
	f := new(newTokenFlags)
	c := &cobra.Command{
		Use:   "create AGENT",
		Short: "Create a token for a client, such as cursor, and print it once",
		Long: `Create a token with which one client calls tools. AGENT is the name of the client in rules,
records and ` + "`stop --agent`" + `. Give each client its own token. The token is printed once, or
written to a new file, and is valid immediately. The mesh stores only its hash. With
--use-my-connections, every holder of the token calls servers with your accounts.`,
		Example: "  " + t.self + " token create cursor --owner ana --expires 30d --file cursor.token",
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, given []string) error {
			req, err := f.request(given[0], time.Now())
			if err != nil {
				return usageError{err}
			}
			return t.withIdentity(c.Context(), func(ctx context.Context, client identityv1.IdentityServiceClient) error {
				return t.issueToken(ctx, client, req, f.file)
			})
		},
	}
	flags := c.Flags()
	flags.StringVar(&f.owner, "owner", "", "the `SUBJECT` of the person for whom the client works (default: the holder of the operator's token)")
	flags.BoolVar(&f.noOwner, "no-owner", false, "set no owner")
	flags.StringArrayVar(&f.groups, "group", nil, "a `GROUP` of the client, which the configuration must have; may be repeated")
	flags.StringArrayVar(&f.servers, "server", nil, "a `SERVER` that the client may use, at /mcp/SERVER; may be repeated (default: all)")
	flags.StringVar(&f.expires, "expires", defaultTokenLife, expiresHelp)
	flags.StringVar(&f.file, "file", "", "write the token to this new `FILE`, which only you can read")
	flags.StringVar(&f.id, "id", "", "the `ID` of the token (default: AGENT and 6 random letters and digits)")
	flags.StringVar(&f.subject, "subject", "", "the `SUBJECT` in rules, limits and records (default: the ID)")
	flags.StringVar(&f.tenant, "tenant", "default", "the `TENANT` of the client")
	flags.BoolVar(&f.useMyConnections, "use-my-connections", false, "let the agent use your connections to servers with credentials.as: person")
	c.MarkFlagsMutuallyExclusive("owner", "no-owner", "use-my-connections")
	return c
}

// request returns the request to create a token for an agent.
func (f *newTokenFlags) request(agent string, now time.Time) (*identityv1.CreateTokenRequest, error) {
	expires, err := parseExpiry(f.expires, now)
	if err != nil {
		return nil, fmt.Errorf("--expires: %w", err)
	}
	id := cmp.Or(f.id, newTokenID(agent))
	return &identityv1.CreateTokenRequest{
		OwnedByCaller: f.owner == "" && !f.noOwner,
		Token: &identityv1.Token{
			Name: id, Tenant: f.tenant, Subject: cmp.Or(f.subject, id), Agent: agent, Owner: f.owner, Groups: f.groups, Servers: f.servers,
			Role: authv1.TokenRole_TOKEN_ROLE_AGENT, Expires: timestamppb.New(expires), UsesConnections: f.useMyConnections,
		},
	}, nil
}

// newTokenID returns an id that consists of the name of an agent, without the characters that an id may not contain,
// and 6 random characters.
func newTokenID(agent string) string {
	const maxAgent = 100
	name := strings.Map(func(r rune) rune {
		if strings.ContainsRune("_.@-", r) || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, agent)
	return name[:min(len(name), maxAgent)] + "-" + strings.ToLower(rand.Text()[:6])
}

// parseExpiry parses an RFC 3339 time in the future, or a duration from now. A duration has Go's format, or is a number
// of days such as 30d.
func parseExpiry(text string, now time.Time) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		var life time.Duration
		if days, ok := strings.CutSuffix(text, "d"); ok {
			var n int64
			n, err = strconv.ParseInt(days, 10, 16)
			life = time.Duration(n) * 24 * time.Hour
		} else {
			life, err = time.ParseDuration(text)
		}
		at = now.Add(life)
	}
	switch {
	case err != nil:
		return time.Time{}, fmt.Errorf("%q is neither a duration such as 12h or 30d nor a time such as 2026-03-01T12:00:00Z", text)
	case at.Before(now.Add(time.Minute)):
		return time.Time{}, fmt.Errorf("%q is less than a minute from now", text)
	case at.After(now.Add(maxTokenLife)):
		return time.Time{}, fmt.Errorf("%q is more than a year from now: choose at most 365d, and create another token before it expires", text)
	}
	return at, nil
}

type createdToken struct {
	Token tokenRecord `json:"token"`
	// Secret is empty if the token was written to File.
	Secret string `json:"secret,omitzero"`
	File   string `json:"file,omitzero"`
	// OldExpires is when the replaced text becomes invalid. It is zero if the token is new.
	OldExpires time.Time `json:"oldExpires,omitzero"`
	// UnconfirmedReplicas is the number of replicas of the identity role that have not confirmed the rotation of the
	// token. It is -1 if the number is unknown.
	UnconfirmedReplicas int32 `json:"unconfirmedReplicas,omitzero"`
}

// issueToken creates a token, and prints it or writes it to a new file. It creates the file first, because otherwise it
// could create a token that it can't write.
func (t *tool) issueToken(ctx context.Context, client identityv1.IdentityServiceClient, req *identityv1.CreateTokenRequest, path string) error {
	file, err := createTokenFile(path)
	if err != nil {
		return err
	}
	resp, err := client.CreateToken(ctx, req)
	if err != nil {
		return errors.Join(t.explainError(err), file.discard())
	}
	out := createdToken{Token: newTokenRecord(resp.GetToken()), Secret: resp.GetSecret()}
	if err := file.write(resp.GetSecret()); err != nil {
		return fmt.Errorf("the token %s was created, but can't be written: %w; revoke it with %s", out.Token.ID, err, t.command("token revoke "+shellWords(out.Token.ID)))
	}
	if path != "" {
		out.Secret, out.File = "", path
	}
	if t.json() {
		return t.printJSON(out)
	}
	return t.printCreated(out)
}

// printCreated prints a new token on standard output, and instructions for using it on standard error.
func (t *tool) printCreated(c createdToken) error {
	say := func(format string, args ...any) { _ = oneLine(t.errOut, format, args...) }
	say("created: token %s of the agent %s, valid until %s", c.Token.ID, c.Token.Agent, c.Token.Expires.Format(time.DateTime))
	if c.Token.Owner != "" {
		say("owner: %s, who can't approve its calls unless approvals.owner_may_approve is true", c.Token.Owner)
	}
	if c.Token.UsesConnections {
		say("every holder of the token uses the connections of %s to servers (%s)", c.Token.Owner, t.command("connections"))
	}
	if c.File != "" {
		say("the token is in %s, which only you can read", c.File)
	} else {
		if err := oneLine(t.out, "%s", c.Secret); err != nil {
			return fmt.Errorf("print the token: %w; revoke it with: %s", err, t.command("token revoke "+shellWords(c.Token.ID)))
		}
		say("this is the only time that the token is printed")
	}
	say("put it into the client's configuration, as the header `Authorization: Bearer TOKEN`, or as SLUICE_TOKEN in the environment of %s", t.command("stdio"))
	say("to revoke it: %s", t.command("token revoke "+shellWords(c.Token.ID)))
	return nil
}
