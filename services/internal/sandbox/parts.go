package sandbox

// exitLauncher is the exit code of the launcher if it could not start the program.
const exitLauncher = 126

// These are the parts of a report.
const (
	heldFiles      = "files"
	heldContents   = "contents of files"
	heldMetadata   = "modes and times of files"
	heldProcesses  = "processes"
	heldSignals    = "signals"
	heldTracing    = "tracing"
	heldListing    = "the list of processes"
	heldLimits     = "limits of processes"
	heldPriorities = "priorities of processes"
	heldSockets    = "Unix sockets with a path"
	heldAbstract   = "abstract Unix sockets"
	heldNetwork    = "network"
	heldInotify    = "the number of inotify instances"
	heldTCP        = "TCP"
	heldPrograms   = "programs"
	heldDatagrams  = "UDP, Multipath TCP and other protocols"
)

// everything lists all parts that must be enforced for the rules.
func everything(r *Rules) []string {
	all := []string{heldFiles, heldProcesses, heldSockets, heldAbstract, heldPrograms}
	if r.NoNetwork {
		all = append(all, heldNetwork)
	}
	return all
}
