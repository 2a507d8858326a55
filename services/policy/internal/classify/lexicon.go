package classify

import (
	"strings"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
)

// These are short names for the categories.
const (
	unknown     = mcpv1.Category_CATEGORY_UNSPECIFIED
	read        = mcpv1.Category_CATEGORY_READ
	write       = mcpv1.Category_CATEGORY_WRITE
	execute     = mcpv1.Category_CATEGORY_EXECUTE
	destructive = mcpv1.Category_CATEGORY_DESTRUCTIVE
	financial   = mcpv1.Category_CATEGORY_FINANCIAL
)

// sense is the meaning of a verb that describes a tool's action. Such a verb is in the tool's name or at the beginning
// of its description.
type sense struct {
	category mcpv1.Category
	// weak is true if the word is often a noun or has several meanings. Weak verbs are weaker evidence than other verbs.
	weak bool
}

// verbs contains the known verbs in their base form. A ~ marks a weak verb.
var verbs = lexicon(map[mcpv1.Category]string{
	read: `
		get list read search find fetch retrieve query show view look describe check count browse explore scan analyze
		analyse compare diff validate verify summarize summarise calculate estimate predict detect recommend suggest
		discover locate status info ping echo preview explain extract parse peek poll watch tail enumerate identify whoami
		lint geocode decode encode hash visualize visualise match rank compute lookup download~ is has can screenshot recall
		return see determine examine measure assess review inspect display scrape introspect obtain know answer grep
		glob ls cat head stat tree translate convert infer reason think interpret profile observe trace~ monitor~ wait~
		select~ health~ stats~ statistics~ metrics~ history~ summary~ details~ report~ audit~ logs~ overview~ version~ help~
		simulate~ forecast~ classify~ score~ evaluate~ generate~ open~ reconnect~ resolve~ route~ map~ filter~ test~
		load~ take~ render~ capture~ snapshot~ crawl~ schema~ connect~ connected~ login~ authenticate~ research~ debug~ ask~ guide~ usage~
		provide~ dashboard~ insights~ analytics~ rerank format~ doctor~ benchmark~ gather~ sample~`,
	write: `
		alter amend initiate~ request~ allow permit place~ order~ hire rent turn~ shut~ roll~ power~ deposit~ fund~ settle~ bridge~ collect~ pull~ bookkeep receive~ reconcile stage~ create add update set edit modify write save store insert append post~ upload send reply comment~ publish rename
		move copy duplicate clone fork push commit merge assign unassign attach link~ unlink mark tag label register
		unregister enable disable configure activate deactivate close archive unarchive restore pin unpin subscribe
		unsubscribe invite join leave share import export record~ log~ track~ schedule~ submit approve reject cancel pause
		init initialize initialise setup sync~ apply upsert replace index annotate complete~ compose draft notify broadcast
		vote react star unstar follow unfollow block~ lock unlock grant reorder increment decrement backup checkpoint
		propose accept decline allocate adjust tune optimize~ optimise~ learn consolidate compress sign~ encrypt decrypt~
		seed populate handoff claim~ release~ transition make~ put change define customize customise remember memorize mute
		unmute stop~ end~ disconnect exit~ quit~ finish~ revert undo redo detach dismiss acknowledge ack contribute message~
		email~ respond resume~ bookmark favorite highlight distill promote demote finalize void~ logout issue~ extend renew unmerge sort~ 
		adapt~ ingest admit evolve~ mutate prepare~ transfer~ mint~ reindex rebuild refresh~ reload~ replicate redirect
		freeze unfreeze hide unhide flag enroll compact~ prepend crop trim split~ zip unzip mount unmount book~ reschedule
		confirm deny ban unban kick suspend unsuspend escalate elevate alert~ snooze silence print~ paste play~ skip~
		position~ upvote downvote like~ unlike favourite fix~ repair adopt bump bind unbind reopen~ reassign reserve
		transcode~ assemble~ sketch~ draw paint~ style~ arrange~ align rewrite correct~ enrich normalize~ deduplicate
		shorten tweet~ crosspost nominate award credit~ whitelist blacklist allowlist authorize~ authorise~ impersonate~
		mock~ stub~ unenroll onboard offboard rotate switch toggle resize emulate~ manage~ patch steal~ associate dissociate
		unpublish expose protect unprotect dump~ organize organise group~ ungroup relate embed~ provision`,
	execute: `
		run execute exec invoke eval start~ spawn launch trigger deploy build~ perform~ process~ click type~ press hover
		drag fill~ navigate goto~ scroll tap swipe orchestrate train dispatch delegate rerun retry restart reboot rollback
		scale~ replay interact prompt~ install upgrade~ handle~ call~ chat~ automate compile do~ act~ use~ coordinate~ boot
		migrate~ queue~ enqueue forward~ steer negotiate operate begin~ proxy~ control~ step~ continue~ iterate~ loop~
		transform~ fuzz attack hack solve~ spin dial~ ring~ actuate shell~ bash~ terminal~ sudo ssh~ serve~ cordon
		uncordon speculate~ engage~ bootstrap emit~ redeploy requeue reprocess rollout~ failover`,
	destructive: `
		drop expunge teardown squash~ rebase~ stash~ tear~ destruct delete remove destroy purge wipe erase clear~ truncate reset terminate kill uninstall revoke discard prune flush
		evict expire~ forget trash empty cleanup clean~ overwrite shred dissolve shutdown deprovision drain delist
		vacuum~ burn unsend dequeue~ pop~ invalidate~ obliterate nuke rm rmdir del unset~ decommission abort`,
	financial: `
		swap~ pay refund charge~ purchase buy sell withdraw payout donate reimburse bill~ payment~ trade~ remit wire~
		stake unstake debit deduct~ bid~ bet~ wager tip~ invest liquidate redeem~ repay borrow~ lend disburse`,
})

func lexicon(words map[mcpv1.Category]string) map[string]sense {
	all := make(map[string]sense)
	for category, text := range words {
		for word := range strings.FieldsSeq(text) {
			base, weak := strings.CutSuffix(word, "~")
			if _, duplicate := all[base]; duplicate {
				panic("classify: the verb " + base + " is listed twice")
			}
			all[base] = sense{category, weak}
		}
	}
	return all
}

// openerWords contains words that can precede the verb in a description but do not describe the tool's action.
var openerWords = set(`
	this that the a an tool tools endpoint api function command method operation action utility helper use used using
	lets let allows allow enables enable you users to it can be will would for which is mcp please note important
	required only directly automatically quickly easily securely safely also first optionally deprecated
	experimental beta new legacy recommended primary powerful us we simple simply helps help one-shot read-only
	efficiently programmatically intelligently asynchronously synchronously bulk batch atomically fully internal
	your by and i when want need`)

func set(words string) map[string]bool {
	all := make(map[string]bool)
	for word := range strings.FieldsSeq(words) {
		all[word] = true
	}
	return all
}
