package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
)

const (
	// homeTenant is the default tenant. The key `groups` lists subjects of this tenant.
	homeTenant = "default"
	// maxTokenServers is the maximum number of servers of a token.
	maxTokenServers = 16
	// maxGroups is the maximum number of groups of a principal.
	maxGroups = 256
	// maxGroupName is the maximum length of a group's name, in bytes.
	maxGroupName = 128
)

// OwnerMayApproveWarning is the warning to show if [Approvals.OwnerMayApprove] is set.
const OwnerMayApproveWarning = "approvals.owner_may_approve is true: the owner of an agent may approve its calls, so no second person need see them"

// GroupsOf returns the groups of a token: its own groups, and the groups in the key `groups` that contain the token's
// subject. The key `groups` lists subjects of homeTenant. A token of another tenant has only its own groups, even if
// its subject has the same name.
func (f *File) GroupsOf(t Token) []string {
	groups := slices.Clone(t.Groups)
	if t.Tenant != homeTenant {
		return groups
	}
	for _, name := range slices.Sorted(maps.Keys(f.Groups)) {
		if slices.Contains(f.Groups[name], t.Subject) && !slices.Contains(groups, name) {
			groups = append(groups, name)
		}
	}
	return groups
}

// Warnings returns the warnings about the configuration that an operator should see.
func (f *File) Warnings() []string {
	if f.Approvals.OwnerMayApprove {
		return []string{OwnerMayApproveWarning}
	}
	return nil
}

func (f *File) checkGroups(p *problems) {
	for _, name := range slices.Sorted(maps.Keys(f.Groups)) {
		path := strictyaml.Key("groups", name)
		if name == "" || len(name) > maxGroupName || !isPlain(name) {
			p.addf(path, "is not a name of 1 to %d bytes without control characters", maxGroupName)
		}
		if len(f.Groups[name]) == 0 {
			p.addf(path, "is empty: name subjects, or remove it")
		}
		seen := make(map[string]bool, len(f.Groups[name]))
		for i, subject := range f.Groups[name] {
			switch at := strictyaml.Index(path, i); {
			case subject == "" || len(subject) > 256 || !isPlain(subject):
				p.addf(at, "is not a subject of 1 to 256 bytes without control characters")
			case seen[subject]:
				p.addf(at, "%q is listed twice", subject)
			}
			seen[subject] = true
		}
	}
	for i, t := range f.Auth.Tokens {
		if n := len(f.GroupsOf(t)); n > maxGroups && len(t.Groups) <= maxGroups {
			p.addf(fmt.Sprintf("auth.tokens[%d]", i), "%d groups, with those of `groups`, are more than %d", n, maxGroups)
		}
	}
}

func isPlain(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, unicode.IsControl)
}
