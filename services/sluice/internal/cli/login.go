package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/issuer"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

// signInTime is how long `login` waits for a person in the browser.
const signInTime = 10 * time.Minute

type loginFlags struct {
	issuer, role, tokenFile string
	device, noBrowser       bool
	// maxAge is the maximum time since the person's authentication. 0 means no limit.
	maxAge time.Duration
	acr    []string
}

func (t *tool) login() *cobra.Command {
	flags := new(loginFlags)
	c := &cobra.Command{
		Use:   "login",
		Short: "Sign in at your company's identity provider",
		Long: `Sign in at an issuer of the configuration, and store a session token for the other commands, in
the keychain of your system or otherwise in a file that only you can read. The session has the
subject that your agents' JWTs have as their owner, your groups at the issuer, and one role. It
ends with ` + "`" + t.self + " logout`" + `, or after 12 hours unless the configuration sets another time.

The command opens the issuer's page in your browser. On a machine without a browser, use
--device. In a CI job that has an ID token, use --token-file. Some approvals require a recent
authentication (--max-age) or a certain kind (--acr); the command fails if the issuer does not
confirm it. With --device, many issuers ignore both flags.`,
		Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			f, err := t.load()
			if err != nil {
				return err
			}
			return t.signIn(c.Context(), f, flags)
		},
	}
	c.Flags().StringVar(&flags.issuer, "issuer", "", "the `NAME` of the issuer, if there are several")
	c.Flags().StringVar(&flags.role, "role", "", "the `ROLE` of the session: viewer, approver or operator (default the one with the fewest rights)")
	c.Flags().BoolVar(&flags.device, "device", false, "show a code to enter on another device")
	c.Flags().BoolVar(&flags.noBrowser, "no-browser", false, "print the address of the page instead of opening a browser")
	c.Flags().StringVar(&flags.tokenFile, "token-file", "", "sign in with the ID token in `FILE`; - reads standard input")
	c.Flags().DurationVar(&flags.maxAge, "max-age", 0, "the maximum `TIME` since your authentication, 1m to 24h")
	c.Flags().StringArrayVar(&flags.acr, "acr", nil, "an accepted authentication context `CLASS`, such as phr; may be repeated")
	c.MarkFlagsMutuallyExclusive("device", "token-file", "no-browser")
	_ = c.RegisterFlagCompletionFunc("role", cobra.FixedCompletions([]string{"viewer", "approver", "operator"}, cobra.ShellCompDirectiveNoFileComp))
	return c
}

// signIn signs in, stores the session, and ends the previously stored session.
func (t *tool) signIn(ctx context.Context, f *config.File, flags *loginFlags) error {
	role := authv1.TokenRole(authv1.TokenRole_value["TOKEN_ROLE_"+strings.ToUpper(flags.role)])
	if flags.role != "" && (role == authv1.TokenRole_TOKEN_ROLE_UNSPECIFIED || role == authv1.TokenRole_TOKEN_ROLE_AGENT) {
		return usageError{fmt.Errorf("--role must be viewer, approver or operator, is %q", flags.role)}
	}
	if err := flags.checkAuthentication(); err != nil {
		return usageError{err}
	}
	at, err := t.endpointOf(f, authv1.Role_ROLE_IDENTITY)
	if err != nil {
		return err
	}
	issuer, err := t.chooseSignIn(ctx, at, flags)
	if err != nil {
		return err
	}
	created, err := t.createSession(ctx, at, issuer, role, flags)
	if err != nil {
		return err
	}
	before, beforeErr := readSession(ctx, f)
	if err := storeSession(ctx, f, at.mesh, created); err != nil {
		return errors.Join(fmt.Errorf("the sign-in has succeeded, but the session can't be stored: %w", err), t.endSession(ctx, at, created.GetSecret()))
	}
	if beforeErr == nil && before.Mesh == at.mesh {
		_ = t.endSession(ctx, at, before.secret) // if this fails, the session ends when it expires
	}
	return t.printSignedIn(created)
}

// withSessions calls do with a client on a new connection. It uses a new connection each time, because a connection
// without a credential is closed after 10 s, and a sign-in takes longer.
func (t *tool) withSessions(ctx context.Context, at endpoint, with credential, do func(context.Context, identityv1.SessionServiceClient) error) error {
	conn, err := t.dialWith(at, with)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // only the answer matters
	ctx, cancel := requestContext(ctx)
	defer cancel()
	return do(ctx, identityv1.NewSessionServiceClient(conn))
}

// anonymous is the credential of a person who has not signed in yet.
var anonymous = credential{from: "none"}

// chooseSignIn returns the issuer in the flags, or the only issuer if the flags name none.
func (t *tool) chooseSignIn(ctx context.Context, at endpoint, flags *loginFlags) (*identityv1.SignIn, error) {
	var all []*identityv1.SignIn
	err := t.withSessions(ctx, at, anonymous, func(ctx context.Context, client identityv1.SessionServiceClient) error {
		resp, err := client.ListSignIns(ctx, new(identityv1.ListSignInsRequest))
		all = resp.GetSignIns()
		return err
	})
	if err != nil {
		return nil, t.explainError(err)
	}
	var names []string
	var found *identityv1.SignIn
	for _, one := range all {
		names = append(names, one.GetIssuer())
		if one.GetIssuer() == flags.issuer || flags.issuer == "" && len(all) == 1 {
			found = one
		}
	}
	switch {
	case found == nil && len(names) == 0:
		return nil, errors.New("people can't sign in at this mesh: ask an operator to set `sign_in` and `people` of an issuer (auth.issuers)")
	case found == nil && flags.issuer == "":
		return nil, usageError{fmt.Errorf("name one of the issuers with --issuer: %s", strings.Join(names, ", "))}
	case found == nil:
		return nil, usageError{fmt.Errorf("people can't sign in at an issuer %q of this mesh: name one of %s", flags.issuer, strings.Join(names, ", "))}
	case found.GetProblem() != "":
		return nil, fmt.Errorf("issuer %s: %s", found.GetIssuer(), safetext.Line(found.GetProblem()))
	}
	return found, nil
}

// createSession signs in with the flow that the flags select.
func (t *tool) createSession(ctx context.Context, at endpoint, issuer *identityv1.SignIn, role authv1.TokenRole, flags *loginFlags) (created *identityv1.CreateSessionResponse, err error) {
	ctx, cancel := context.WithTimeout(ctx, signInTime)
	defer cancel()
	req := &identityv1.CreateSessionRequest{Issuer: issuer.GetIssuer(), Role: role, Authentication: flags.authentication()}
	switch {
	case flags.tokenFile != "":
		token, err := readTokenFile(flags.tokenFile)
		if err != nil {
			return nil, err
		}
		req.Grant = &identityv1.CreateSessionRequest_Jwt{Jwt: token}
	case flags.device:
		return t.signInByDevice(ctx, at, req)
	default:
		code, err := t.authorizationCode(ctx, issuer, req.GetAuthentication(), flags.noBrowser)
		if err != nil {
			return nil, err
		}
		req.Grant = &identityv1.CreateSessionRequest_Code{Code: code}
	}
	err = t.withSessions(ctx, at, anonymous, func(ctx context.Context, client identityv1.SessionServiceClient) (err error) {
		created, err = client.CreateSession(ctx, req)
		return err
	})
	if err != nil {
		return nil, t.explainError(err)
	}
	return created, nil
}

func readTokenFile(path string) (string, error) {
	raw, err := readLimited(path, 2*issuer.MaxToken)
	if err != nil {
		return "", fmt.Errorf("read the ID token: %w", err)
	}
	token := strings.TrimSpace(string(raw))
	if !issuer.IsJWT(token) || len(token) > issuer.MaxToken {
		return "", fmt.Errorf("%s does not contain a JWT of at most %d bytes", path, issuer.MaxToken)
	}
	return token, nil
}

// signInByDevice shows a code, and then requests the session repeatedly until the person has entered the code on
// another device.
func (t *tool) signInByDevice(ctx context.Context, at endpoint, req *identityv1.CreateSessionRequest) (created *identityv1.CreateSessionResponse, err error) {
	var started *identityv1.StartDeviceSignInResponse
	err = t.withSessions(ctx, at, anonymous, func(ctx context.Context, client identityv1.SessionServiceClient) (err error) {
		started, err = client.StartDeviceSignIn(ctx, &identityv1.StartDeviceSignInRequest{Issuer: req.GetIssuer(), Authentication: req.GetAuthentication()})
		return err
	})
	if err != nil {
		return nil, t.explainError(err)
	}
	fmt.Fprintf(t.errOut, "Open %s and enter the code %s\n", safetext.Line(started.GetVerificationUri()), safetext.Line(started.GetUserCode()))
	if all := started.GetVerificationUriComplete(); all != "" {
		fmt.Fprintf(t.errOut, "or open %s\n", safetext.Line(all))
	}
	req.Grant = &identityv1.CreateSessionRequest_DeviceCode{DeviceCode: started.GetDeviceCode()}
	ctx, cancel := context.WithTimeout(ctx, started.GetExpiresIn().AsDuration())
	defer cancel()
	for interval := started.GetInterval().AsDuration(); ; {
		select {
		case <-ctx.Done():
			return nil, errors.New("the sign-in was not finished in time: sign in again")
		case <-time.After(interval):
		}
		err := t.withSessions(ctx, at, anonymous, func(ctx context.Context, client identityv1.SessionServiceClient) (err error) {
			created, err = client.CreateSession(ctx, req)
			return err
		})
		code := status.Code(err)
		switch reason := rpc.Reason(err); {
		case err == nil:
			return created, nil
		case reason == "SIGN_IN_SLOW_DOWN", reason == "SIGN_IN_BUSY":
			interval += slowDown
		case reason != "SIGN_IN_PENDING" && code != codes.Unavailable && code != codes.DeadlineExceeded:
			return nil, t.explainError(err)
		}
	}
}

// slowDown is added to the polling interval of the device flow if the issuer requests it (RFC 8628, section 3.5).
const slowDown = 5 * time.Second

// signedIn is a session in the JSON output.
type signedIn struct {
	tokenRecord

	Roles []string `json:"roles,omitempty"`
}

func (t *tool) printSignedIn(created *identityv1.CreateSessionResponse) error {
	out := signedIn{tokenRecord: newTokenRecord(created.GetToken())}
	for _, role := range created.GetRoles() {
		out.Roles = append(out.Roles, enum.Name(role))
	}
	if t.json() {
		return t.printJSON(out)
	}
	t.printf("signed in as %s, as %s, until %s", out.Subject, withArticle(out.Role), out.Expires.Format(time.DateTime))
	if len(out.Roles) > 1 {
		t.printf("you may also sign in as %s: %s", strings.Join(without(out.Roles, out.Role), " or "), t.command("login --role ROLE"))
	}
	return nil
}

func without(names []string, name string) (out []string) {
	for _, one := range names {
		if one != name {
			out = append(out, one)
		}
	}
	return out
}

func (t *tool) logout() *cobra.Command {
	return &cobra.Command{
		Use:   "logout",
		Short: "End the session of `login`",
		Long: `End the session of ` + "`" + t.self + " login`" + `, and delete its token from this machine. Once the command
returns, no service accepts this token. You stay signed in at the issuer.`,
		Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			f, err := t.load()
			if err != nil {
				return err
			}
			return t.signOut(c.Context(), f)
		},
	}
}

// signOut ends the stored session and deletes it from this machine.
func (t *tool) signOut(ctx context.Context, f *config.File) error {
	session, err := readSession(ctx, f)
	if errors.Is(err, errNoSession) {
		t.printf("no session is stored")
		return nil
	}
	var at endpoint
	if err == nil {
		at, err = t.endpointOf(f, authv1.Role_ROLE_IDENTITY)
	}
	if err == nil && session.Mesh != at.mesh {
		err = errors.New("the session belongs to another mesh")
	}
	if err == nil {
		err = t.endSession(ctx, at, session.secret)
	}
	if removeErr := removeSession(ctx, f); removeErr != nil {
		return errors.Join(err, removeErr)
	}
	if err != nil {
		return fmt.Errorf("the token is deleted from this machine, but the session may be valid until it expires: %w", err)
	}
	t.printf("signed out")
	return nil
}

// endSession ends the session with the given token at the mesh. It succeeds if the session has already ended.
func (t *tool) endSession(ctx context.Context, at endpoint, secret string) error {
	var unconfirmed int32
	err := t.withSessions(ctx, at, credential{secret: secret, from: sessionSource}, func(ctx context.Context, client identityv1.SessionServiceClient) error {
		resp, err := client.EndSession(ctx, new(identityv1.EndSessionRequest))
		unconfirmed = resp.GetUnconfirmedReplicas()
		return err
	})
	switch {
	case status.Code(err) == codes.Unauthenticated:
		return nil
	case err != nil:
		return t.explainError(err)
	case unconfirmed > 0:
		return fmt.Errorf("the session has ended, but this is not confirmed by %s: a replica that runs without a connection to the database accepts the token for at most stores.identity_max_age", identityReplicas(unconfirmed))
	}
	return nil
}

func (t *tool) whoami() *cobra.Command {
	return &cobra.Command{
		Use:   "whoami",
		Short: "Show the person whose token the commands send",
		Args:  args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			f, err := t.load()
			if err != nil {
				return err
			}
			conn, err := t.dial(f, authv1.Role_ROLE_IDENTITY)
			if err != nil {
				return err
			}
			defer conn.Close() //nolint:errcheck // only the answer matters
			ctx, cancel := requestContext(c.Context())
			defer cancel()
			resp, err := identityv1.NewSessionServiceClient(conn).GetCaller(ctx, new(identityv1.GetCallerRequest))
			if err != nil {
				return t.explainError(err)
			}
			return t.printCaller(resp.GetToken())
		},
	}
}

func (t *tool) printCaller(token *identityv1.Token) error {
	out := signedIn{tokenRecord: newTokenRecord(token)}
	if t.json() {
		return t.printJSON(out)
	}
	expires := "never"
	if !out.Expires.IsZero() {
		expires = out.Expires.Format(time.DateTime)
	}
	return t.table([]string{"WHAT", "VALUE"}, [][]string{
		{"subject", out.Subject}, {"tenant", out.Tenant}, {"role", out.Role}, {"groups", orDash(strings.Join(out.Groups, ", "))},
		{"issuer", orDash(out.Issuer)}, {"authenticated", orDash(out.authentication())}, {"token", out.ID}, {"token from", t.lastRequest.tokenFrom}, {"expires", expires},
	})
}

// readLimited reads a file, or standard input if the path is -. It returns an error if there are more than limit bytes.
func readLimited(path string, limit int64) ([]byte, error) {
	if path == "-" {
		return readUpTo(os.Stdin, limit)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // the file was only read
	return readUpTo(file, limit)
}
