package classify

// Version is the version of the classifier's results. It must be increased whenever a result changes for any
// definition. Results that were stored by another version are recomputed. A test checks that Version was increased if
// the results for the labelled tools have changed.
const Version = 8
