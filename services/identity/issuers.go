package identity

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/identity/internal/issuerkeys"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/issuer"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// maxProblem is the maximum length of an error in an IssuerStatus, in bytes.
const maxProblem = 1024

// Issuer is a configured issuer.
type Issuer struct {
	// Mapping contains the settings of the issuer, without its keys.
	Mapping *identityv1.Issuer
	// SignIn says how people sign in.
	SignIn SignIn

	source issuerkeys.Source
}

// SignIn says how people sign in at an issuer. If it is the zero value, no person can sign in.
type SignIn struct {
	// ClientID and ClientSecret identify the OAuth client. ClientSecret is empty if the client is public.
	ClientID, ClientSecret string
	// Scopes are the OAuth scopes to request.
	Scopes []string
	// Session is how long a session lasts. Device is true if people may sign in on another device (RFC 8628).
	Session time.Duration
	Device  bool
	// Groups maps a role to groups. A person in one of these groups may sign in with the role.
	Groups map[authv1.TokenRole][]string
}

func (i Issuer) equal(other Issuer) bool {
	return i.source == other.source && i.SignIn.equal(&other.SignIn) && proto.Equal(i.Mapping, other.Mapping)
}

func (s *SignIn) equal(other *SignIn) bool {
	return s.ClientID == other.ClientID && s.ClientSecret == other.ClientSecret && s.Session == other.Session && s.Device == other.Device &&
		slices.Equal(s.Scopes, other.Scopes) && maps.EqualFunc(s.Groups, other.Groups, slices.Equal)
}

// isOf reports whether the issuer identifies callers of a tenant.
func (i Issuer) isOf(tenant string) bool {
	return i.Mapping.GetTenant() == tenant || slices.Contains(slices.Collect(maps.Values(i.Mapping.GetTenants())), tenant)
}

// issuersOf returns the issuers in a configuration. It reads the files of certificate authorities, and resolves the
// secrets of the OAuth clients.
func issuersOf(f *config.File, env config.Env) ([]Issuer, error) {
	var out []Issuer
	for n := range f.Auth.Issuers {
		from := &f.Auth.Issuers[n]
		one := Issuer{
			Mapping: mappingOf(f.Resource(), from),
			source:  issuerkeys.Source{Issuer: from.Issuer, KeySet: from.KeySet},
		}
		if from.CA != "" {
			raw, err := os.ReadFile(f.Path(from.CA))
			if err != nil {
				return nil, fmt.Errorf("auth.issuers[%d].ca: %w", n, err)
			}
			one.source.CA = string(raw)
		}
		if from.SignIn != nil {
			secret, err := from.SignIn.ClientSecret.Resolve(f, env)
			if err != nil {
				return nil, fmt.Errorf("auth.issuers[%d].sign_in.client_secret: %w", n, err)
			}
			one.SignIn = signInOf(from, secret)
		}
		out = append(out, one)
	}
	mappings := make([]*identityv1.Issuer, len(out))
	for n, i := range out {
		mappings[n] = i.Mapping
	}
	if _, err := issuer.NewSet(mappings); err != nil {
		return nil, fmt.Errorf("auth.issuers: %w", err)
	}
	return out, nil
}

func signInOf(from *config.Issuer, secret string) SignIn {
	out := SignIn{
		ClientID: from.SignIn.ClientID, ClientSecret: secret, Scopes: from.SignIn.Scopes, Session: from.SignIn.Session, Device: from.SignIn.Device, Groups: make(map[authv1.TokenRole][]string),
	}
	for name, groups := range from.People {
		out.Groups[authv1.TokenRole(authv1.TokenRole_value["TOKEN_ROLE_"+strings.ToUpper(name)])] = groups
	}
	return out
}

func mappingOf(resource string, from *config.Issuer) *identityv1.Issuer {
	out := &identityv1.Issuer{
		Name: from.Name, Issuer: from.Issuer, Resource: resource, Audiences: from.Audiences, Tenant: from.Tenant, Subject: from.Subject,
		Owner: from.Owner, Algorithms: from.Algorithms, Leeway: durationpb.New(*from.Leeway), MaxLife: durationpb.New(from.MaxLife),
		Delegation: from.Delegation == "act",
	}
	for _, claim := range slices.Sorted(maps.Keys(from.Require)) {
		value := from.Require[claim]
		out.Require = append(out.Require, &identityv1.RequiredClaim{Claim: claim, Patterns: value.Patterns, Equals: value.Equals})
	}
	if from.Tenants != nil {
		out.TenantClaim, out.Tenants = from.Tenants.Claim, from.Tenants.Map
	}
	if from.Groups != nil {
		out.GroupsClaim, out.GroupsPrefix, out.GroupsOptional = from.Groups.Claim, from.Groups.Prefix, from.Groups.Optional
	}
	if from.Agent != nil {
		out.AgentClaim, out.Agents, out.AgentNamedByClaim = from.Agent.Claim, from.Agent.Names, from.Agent.Unknown == "claim"
	}
	return out
}

func sourcesOf(issuers []Issuer) []issuerkeys.Source {
	out := make([]issuerkeys.Source, len(issuers))
	for n, i := range issuers {
		out[n] = i.source
	}
	return out
}

// withKeys returns the issuers with the keys that have been fetched.
func withKeys(configured Identities, book *issuerkeys.Book) []*identityv1.Issuer {
	subjects := configured.groupsOfSubjects()
	out := make([]*identityv1.Issuer, len(configured.Issuers))
	for n, i := range configured.Issuers {
		out[n] = proto.CloneOf(i.Mapping)
		out[n].SubjectGroups = subjects
		out[n].Keys = book.Status(i.source).Keys
	}
	return out
}

// groupsOfSubjects returns the groups that the configuration gives to each subject.
func (i Identities) groupsOfSubjects() map[string]*identityv1.SubjectGroups {
	out := make(map[string]*identityv1.SubjectGroups)
	for _, group := range slices.Sorted(maps.Keys(i.Groups)) {
		for _, subject := range i.Groups[group] {
			if out[subject] == nil {
				out[subject] = new(identityv1.SubjectGroups)
			}
			out[subject].Groups = append(out[subject].Groups, group)
		}
	}
	return out
}

// ListIssuers implements identityv1.IdentityServiceServer.
func (s *Service) ListIssuers(ctx context.Context, _ *identityv1.ListIssuersRequest) (*identityv1.ListIssuersResponse, error) {
	resp, caller := new(identityv1.ListIssuersResponse), authn.CallerOf(ctx)
	for _, one := range s.tokens.identities().Issuers {
		if caller.Tenant() != authn.HomeTenant && !one.isOf(caller.Tenant()) {
			continue
		}
		status := s.tokens.keys.Status(one.source)
		out := &identityv1.IssuerStatus{Name: one.Mapping.GetName(), Issuer: one.Mapping.GetIssuer(), Keys: int32(len(status.Keys))}
		if !status.Fetched.IsZero() {
			out.Fetched = timestamppb.New(status.Fetched)
		}
		if status.Problem != nil {
			text := status.Problem.Error()
			if caller.Tenant() != authn.HomeTenant { // the error can contain the names of hosts in the installation's network
				text = "operators of the tenant \"default\" see the reason"
			}
			out.Problem = strings.ToValidUTF8(text[:min(len(text), maxProblem)], "")
		}
		resp.Issuers = append(resp.Issuers, out)
	}
	return resp, nil
}

// ExplainJWT implements identityv1.IdentityServiceServer.
func (s *Service) ExplainJWT(ctx context.Context, req *identityv1.ExplainJWTRequest) (*identityv1.ExplainJWTResponse, error) {
	if !authn.CallerOf(ctx).OperatesInstallation() {
		return nil, &rpc.Error{Code: codes.PermissionDenied, Reason: "TENANT_REFUSED", Err: errExplainTenant}
	}
	published := s.tokens.published.Load()
	if published == nil {
		return nil, &rpc.Error{Code: codes.Unavailable, Reason: "TOKENS_UNKNOWN", Err: errNotImported}
	}
	set, err := issuer.NewSet(published.GetIssuers())
	if err != nil {
		return nil, err
	}
	steps, found := set.Explain(req.GetToken(), time.Now())
	resp := new(identityv1.ExplainJWTResponse)
	for _, step := range steps {
		resp.Steps = append(resp.Steps, &identityv1.ExplainedStep{Name: step.Name, Text: step.Text, Refused: step.Refused})
	}
	if found != nil {
		resp.Principal, resp.Expires = found.Principal, timestamppb.New(found.Expires)
	}
	return resp, nil
}

var errExplainTenant = errors.New("only operators of the tenant \"default\" may explain JWTs, because issuers belong to the installation")

var errIssuerUnknown = errors.New("the configuration has no issuer of this name")

// ReportUnknownKey implements identityv1.IdentityServiceServer.
func (s *Service) ReportUnknownKey(ctx context.Context, req *identityv1.ReportUnknownKeyRequest) (*identityv1.ReportUnknownKeyResponse, error) {
	for _, one := range s.tokens.identities().Issuers {
		if one.Mapping.GetName() == req.GetIssuer() {
			keys := s.tokens.keys.Refetch(ctx, one.source)
			return &identityv1.ReportUnknownKeyResponse{KeysSha256: issuer.KeysDigest(keys)}, nil
		}
	}
	return nil, &rpc.Error{Code: codes.NotFound, Reason: "ISSUER_UNKNOWN", Err: errIssuerUnknown}
}
