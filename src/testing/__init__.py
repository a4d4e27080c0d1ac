"""Test suites for adapters and for Lance namespaces.

`lancekeep.testing.commit_store`, `.object_store` and `.manifest_store` hold the contracts of the ports. An adapter's
author subclasses a contract and provides its fixtures (docs/write-an-adapter.md).

The rest is a suite of behaviours for any ``lance_namespace.LanceNamespace``. Each behaviour has an id, a sentence of
the specification, and an outcome: passed, failed or not offered. If ``lance_namespace.connect`` opens the namespace,
the suite runs without code::

    pytest --pyargs lancekeep.testing --lance-namespace lancekeep.DirectoryNamespace \\
        --lance-namespace-property manifest_enabled=false \\
        --lance-namespace-without namespaces,properties,locations,rename

Every behaviour gets an empty place. ``{place}`` in the value of a property becomes the path of a directory that does
not exist yet. The default of ``root`` is ``{place}``. Subclass for any other namespace::

    from lancekeep.testing.behaviours import Capability
    from lancekeep.testing.suite import NamespaceBehaviours

    class TestOurs(NamespaceBehaviours):
        capabilities = {Capability.NAMESPACES, Capability.PROPERTIES}

        @pytest.fixture
        def namespace_factory(self, tmp_path):
            return lambda: OurNamespace(tmp_path)  # each call opens another instance on the same place

The suite tests the capabilities that a namespace declares (`lancekeep.testing.behaviours.Capability`) and skips the
others. ``lancekeep.testing.behaviours.run_all`` runs the behaviours without pytest.
"""
