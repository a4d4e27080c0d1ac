"""The storage options that the native engine knows.

The engine ignores the options of other storages, so that one configuration serves several roots. Every object store
accepts these options for the same reason, and refuses unknown names.
"""

from __future__ import annotations

import re

_ENGINE = """
block_size client_max_retries client_retry_timeout download_retry_count dynamodb_endpoint expires_at_millis
lance_aimd_additive_increment lance_aimd_burst_capacity lance_aimd_decrease_factor lance_aimd_initial_rate
lance_aimd_max_backoff_ms lance_aimd_max_rate lance_aimd_max_retries lance_aimd_min_backoff_ms lance_aimd_min_rate
refresh_offset_millis use_opendal
"""

_HTTP = """
allow_http allow_invalid_certificates connect_timeout default_content_type disable_system_certificates http1_only
http2_keep_alive_interval http2_keep_alive_timeout http2_keep_alive_while_idle http2_max_frame_size http2_only
pool_idle_timeout pool_max_idle_per_host proxy_ca_certificate proxy_excludes proxy_url randomize_addresses
read_timeout timeout user_agent
"""

_S3 = """
access_key_id bucket bucket_name checksum_algorithm conditional_put container_authorization_token_file
container_credentials_full_uri container_credentials_relative_uri copy_if_not_exists default_region
disable_bulk_delete disable_tagging endpoint endpoint_url endpoint_url_s3 endpoint_url_sts imdsv1_fallback
metadata_endpoint provider_scheme region request_payer role_arn role_session_name s3_express secret_access_key
server_side_encryption session_token skip_signature sse_bucket_key_enabled sse_customer_key_base64 sse_kms_key_id
token unsigned_payload virtual_hosted_style_request web_identity_token_file
"""

_AZURE = """
access_key account_key account_name authority_host authority_id azure_authority_host azure_authority_id
azure_client_id azure_client_secret azure_container_name azure_credential_type azure_disable_tagging azure_endpoint
azure_fabric_cluster_identifier azure_fabric_session_token azure_fabric_token_service_url azure_fabric_workload_host
azure_federated_token_file azure_identity_endpoint azure_msi_endpoint azure_msi_resource_id azure_object_id
azure_skip_signature azure_storage_access_key azure_storage_account_key azure_storage_account_name
azure_storage_authority_host azure_storage_authority_id azure_storage_client_id azure_storage_client_secret
azure_storage_encryption_key azure_storage_endpoint azure_storage_master_key azure_storage_sas_key
azure_storage_sas_token azure_storage_tenant_id azure_storage_token azure_storage_use_emulator azure_tenant_id
azure_use_azure_cli azure_use_fabric_endpoint bearer_token client_id client_secret container_name credential_type
fabric_cluster_identifier fabric_session_token fabric_token_service_url fabric_workload_host federated_token_file
identity_endpoint master_key msi_endpoint msi_resource_id object_id sas_key sas_token tenant_id use_azure_cli
use_emulator use_fabric_endpoint
"""

_GOOGLE = """
application_credentials google_application_credentials google_base_url google_bearer_token google_bucket
google_bucket_name google_service_account google_service_account_key google_service_account_path google_skip_signature
google_storage_token service_account service_account_key service_account_path
"""

NATIVE_OPTIONS = frozenset("".join((_ENGINE, _HTTP, _S3, _AZURE, _GOOGLE)).split())
"""The names in lower case; the names for S3 and its HTTP client also occur with the prefix ``aws_``."""

_AWS = frozenset((_HTTP + _S3).split())
_PATTERN = re.compile(r"headers\..+|base_\d+\..+")


def is_native_option(name: str) -> bool:
    """Return whether the native engine knows a storage option, in any case."""
    name = name.lower()
    return (
        name in NATIVE_OPTIONS
        or (name.startswith("aws_") and name.removeprefix("aws_") in _AWS)
        or _PATTERN.fullmatch(name) is not None
    )
